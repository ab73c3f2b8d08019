// Puts what the server sends in the place of the page's content. Without it, a page is as it was when it was loaded.
"use strict";
const live = document.getElementById("live");
const state = document.getElementById("state");
let source = null;
let held = null;

// What somebody types in, has focused or has marked stays.
function busy() {
  const marked = document.getSelection();
  return live.contains(document.activeElement) || (marked && !marked.isCollapsed && live.contains(marked.anchorNode));
}

function put() {
  if (held === null || busy()) return;
  live.innerHTML = held;
  held = null;
}

function follow() {
  source = new EventSource(live.dataset.events);
  source.onmessage = (event) => {
    held = event.data;
    put();
    state.textContent = "";
  };
  source.addEventListener("verdict", (event) => {
    const verdict = document.getElementById("verdict");
    const open = verdict.querySelector("details")?.open;
    verdict.innerHTML = event.data;
    if (open) verdict.querySelector("details")?.setAttribute("open", "");
  });
  source.addEventListener("displaced", () => {
    source.close();
    state.textContent = "Too many pages are open: this page is not up to date. Reload it.";
  });
  source.onerror = () => { state.textContent = "No connection to the console: this page is not up to date."; };
}

// A page that nobody sees needs no updates.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source.close();
  } else if (source.readyState === EventSource.CLOSED) {
    follow();
  }
});
follow();
document.addEventListener("focusout", () => setTimeout(put, 0));
document.addEventListener("selectionchange", put);
