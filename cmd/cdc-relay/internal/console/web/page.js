// Adds what plain HTML cannot do: copy buttons, and the values of charts under the pointer and by keyboard.
"use strict";
document.documentElement.classList.add("scripted");

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
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button);
});

// linesOf returns the texts of each line of a chart. "" is an unknown value.
function linesOf(chart) {
  return [...chart.querySelectorAll("data")].map((data) => ({ name: data.dataset.name, texts: data.value.split("|") }));
}

function mark(chart, index) {
  const lines = linesOf(chart);
  const last = lines[0].texts.length - 1;
  index = Math.max(0, Math.min(last, index));
  const time = new Date((Number(chart.dataset.from) + index * Number(chart.dataset.step)) * 1000).toISOString().slice(11, 19);
  const values = lines.map((line) => (line.name ? line.name + " " : "") + (line.texts[index] || "unknown"));
  const text = time + " UTC  " + values.join(", ");
  chart.querySelector("output").textContent = text;
  const cursor = chart.querySelector(".cursor");
  cursor.setAttribute("x1", (last ? 100 * index / last : 0) + "%");
  cursor.setAttribute("x2", (last ? 100 * index / last : 0) + "%");
  chart.classList.add("marked");
  chart.setAttribute("aria-valuenow", index);
  chart.setAttribute("aria-valuetext", text);
}

function unmark(chart) {
  chart.querySelector("output").textContent = "";
  chart.classList.remove("marked");
}

function under(chart, event) {
  const box = chart.getBoundingClientRect();
  const last = linesOf(chart)[0].texts.length - 1;
  mark(chart, Math.round((event.clientX - box.left) / box.width * last));
}

// prepare makes the charts of new content readable by keyboard: arrow keys move along the time.
function prepare() {
  for (const chart of document.querySelectorAll(".chart:not([role])")) {
    const last = linesOf(chart)[0].texts.length - 1;
    chart.tabIndex = 0;
    chart.setAttribute("role", "slider");
    chart.setAttribute("aria-label", chart.querySelector("svg").getAttribute("aria-label"));
    chart.setAttribute("aria-valuemin", 0);
    chart.setAttribute("aria-valuemax", last);
    chart.setAttribute("aria-valuenow", last);
    chart.setAttribute("aria-valuetext", "newest value");
    chart.addEventListener("pointermove", (event) => under(chart, event));
    chart.addEventListener("pointerdown", (event) => under(chart, event));
    chart.addEventListener("pointerleave", () => { if (chart !== document.activeElement) unmark(chart); });
    chart.addEventListener("focus", () => mark(chart, Number(chart.getAttribute("aria-valuenow"))));
    chart.addEventListener("blur", () => unmark(chart));
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
