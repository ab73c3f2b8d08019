// Adds what plain HTML cannot do: copy buttons, times in the zone of the browser, one box that ticks all, and the values
// of charts under the pointer and by keyboard.
"use strict";
document.documentElement.classList.add("scripted");

// kept returns a choice of the reader on earlier pages, and keep stores it. Without storage, it holds for this page.
function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch { /* see above */ }
}

const theme = document.getElementById("theme");
const themes = ["auto", "light", "dark"];

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name[0].toUpperCase() + name.slice(1);
  theme.title = "Colors: " + name;
}
setTheme(themes.includes(kept("theme")) ? kept("theme") : "auto");
theme.hidden = false;
theme.addEventListener("click", () => {
  setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]);
  keep("theme", document.documentElement.dataset.theme);
});

// Keys: / goes to the search, and g with the first letter of a page opens that page.
let goes = false;
document.getElementById("keys").hidden = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const opens = (link) => goes && link.textContent[0].toLowerCase() === event.key;
  [...document.querySelectorAll("nav a")].find(opens)?.click();
  goes = event.key === "g";
  if (event.key !== "/") return;
  event.preventDefault();
  document.querySelector("[type=search]").focus();
});

async function copy(button) {
  const text = document.getElementById(button.dataset.copy).innerText;
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch { // only pages on HTTPS or localhost have a clipboard
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.dataset.label ||= button.textContent;
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  setTimeout(() => { button.textContent = button.dataset.label; }, 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button);
});

document.addEventListener("change", (event) => {
  if (event.target.id !== "every") return;
  for (const box of document.querySelectorAll("tbody .tick input")) box.checked = event.target.checked;
});

const zone = document.getElementById("zone");
let local = kept("zone") === "local";

// inZone returns a time as the server writes it, such as 2006-01-02 15:04:05.000, in the chosen zone.
function inZone(time) {
  const shift = local ? time.getTimezoneOffset() * 60000 : 0;
  return new Date(time - shift).toISOString().slice(0, 23).replace("T", " ");
}

function showTimes() {
  for (const time of document.querySelectorAll("time")) {
    const utc = time.dataset.utc || (time.dataset.utc = time.textContent);
    const from = utc.includes("-") ? 0 : 11;
    const now = inZone(new Date(time.dateTime)).slice(from, from + utc.replace("Z", "").length);
    time.textContent = local ? now : utc;
  }
  for (const name of document.querySelectorAll(".zone")) name.textContent = local ? "local time" : "UTC";
  zone.textContent = local ? "Local time" : "UTC";
  zone.title = local ? "Show times in UTC" : "Show times in the zone of this browser";
}
zone.hidden = false;
zone.addEventListener("click", () => {
  local = !local;
  keep("zone", local ? "local" : "utc");
  showTimes();
});
const here = document.querySelector("nav [aria-current]");
if (here) here.closest("nav").scrollLeft = here.offsetLeft - (here.closest("nav").clientWidth - here.offsetWidth) / 2; // scrollIntoView moves the first tab stop

// mark shows the time and the values at an index of a chart.
function mark(chart, index) {
  const lines = [...chart.querySelectorAll("data")].map((data) => [data.dataset.name, data.value.split("|")]);
  const last = lines[0][1].length - 1;
  index = Math.max(0, Math.min(last, index));
  const time = inZone(new Date((Number(chart.dataset.from) + index * Number(chart.dataset.step)) * 1000)).slice(11, 19);
  const values = lines.map(([name, texts]) => (name ? name + " " : "") + texts[index]);
  const text = time + (local ? "  " : " UTC  ") + values.join(", ");
  chart.querySelector("output").textContent = text;
  const x = (last ? 100 * index / last : 0) + "%";
  for (const end of ["x1", "x2"]) chart.querySelector(".cursor").setAttribute(end, x);
  chart.classList.add("marked");
  chart.setAttribute("aria-valuenow", index);
  chart.setAttribute("aria-valuetext", text);
}

// prepare makes the charts of new content readable by keyboard: arrow keys move along the time.
function prepare() {
  showTimes();
  for (const chart of document.querySelectorAll(".chart:not([role])")) {
    const last = chart.querySelector("data").value.split("|").length - 1;
    const attributes = {
      "tabindex": 0, "role": "slider", "aria-label": chart.querySelector("svg").getAttribute("aria-label"),
      "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": last, "aria-valuetext": "newest value",
    };
    for (const [name, value] of Object.entries(attributes)) chart.setAttribute(name, value);
    const under = (event) => {
      const box = chart.querySelector(".plot").getBoundingClientRect();
      mark(chart, Math.round((event.clientX - box.left) / box.width * last));
    };
    const unmark = () => { if (chart !== document.activeElement) chart.classList.remove("marked"); };
    for (const name of ["pointermove", "pointerdown"]) chart.addEventListener(name, under);
    for (const name of ["pointerleave", "blur"]) chart.addEventListener(name, unmark);
    chart.addEventListener("focus", () => mark(chart, Number(chart.getAttribute("aria-valuenow"))));
    chart.addEventListener("keydown", (event) => {
      const now = Number(chart.getAttribute("aria-valuenow"));
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      mark(chart, to);
    });
  }
}
prepare();
