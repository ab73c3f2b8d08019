// Puts what the server sends in the place of the page's content. Without it, a page is as it was when it was loaded.
"use strict";
const live = document.getElementById("live");
const verdict = document.getElementById("verdict");
const state = document.getElementById("state");
const targets = ["button", "a", "input", "select", "summary", ".chart"].map((name) => name + ":hover").join();
const refresh = document.getElementById("refresh");
let on = true;
const held = new Map(); // the newest content of live and verdict that is not shown yet
const shown = new Map(); // the newest content that came
let pressed = false;
let mouse = false; // a finger leaves :hover behind

// Nothing is replaced that somebody types in, has focused, marked or ticked, points at or presses.
function busy(part) {
  const marked = document.getSelection();
  return pressed || part.contains(document.activeElement) ||
    part.querySelector(".tick input:checked") !== null ||
    (mouse && part.querySelector(targets) !== null) ||
    (marked && !marked.isCollapsed && part.contains(marked.anchorNode));
}

// Open details stay open, and wide tables stay where they were scrolled to.
function replace(part, html) {
  const open = [...part.querySelectorAll("details[id]")].map((details) => [details.id, details.open]);
  const scrolled = [...part.querySelectorAll(".wide, pre")].map((box) => [box.scrollLeft, box.scrollTop]);
  part.innerHTML = html;
  for (const [id, was] of open) if (document.getElementById(id)) document.getElementById(id).open = was;
  [...part.querySelectorAll(".wide, pre")].forEach((box, i) => { [box.scrollLeft, box.scrollTop] = scrolled[i] || [0, 0]; });
  prepare();
}

function put() {
  if (!on || held.size === 0) return;
  for (const [part, html] of [...held]) {
    if (busy(part)) continue;
    held.delete(part);
    replace(part, html);
  }
  state.textContent = held.size ? "Updates wait while something is pointed at, selected or focused." : "";
}

// A page that nobody sees needs no updates.
async function follow() {
  try {
    const answer = document.hidden || !on ? null : await fetch(location.href, {
      headers: {"X-Update": "1"}, signal: AbortSignal.timeout(20000),
    });
    for (const [id, html] of Object.entries(await answer?.json() ?? {})) {
      const part = document.getElementById(id);
      if (shown.get(part) !== html) { shown.set(part, html); held.set(part, html); }
    }
    if (on) state.textContent = "";
    put();
  } catch {
    state.textContent = "No connection to the console: this page is not up to date.";
  }
  setTimeout(follow, 2000);
}
follow();
refresh.hidden = false;
refresh.addEventListener("click", () => {
  on = !on;
  refresh.setAttribute("aria-pressed", on);
  refresh.textContent = on ? "Updates on" : "Updates off";
  state.textContent = on ? "" : "Updates are off: this page is as it was.";
  put();
});
document.addEventListener("pointerdown", () => { pressed = true; });
for (const name of ["pointerup", "pointercancel"]) {
  document.addEventListener(name, () => { pressed = false; setTimeout(put, 300); }); // after its click
}
document.addEventListener("pointerover", (event) => {
  mouse = event.pointerType === "mouse";
  setTimeout(put, 0);
});
document.addEventListener("focusout", () => setTimeout(put, 0));
document.addEventListener("selectionchange", put);
document.addEventListener("change", () => setTimeout(put, 0));
