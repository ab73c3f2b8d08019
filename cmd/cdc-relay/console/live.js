// Puts what the server sends in the place of the page's content. Without it, a page is as it was when it was loaded.
"use strict";
const live = document.getElementById("live");
const state = document.getElementById("state");
const source = new EventSource(live.dataset.events);
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

source.onmessage = (event) => {
  held = event.data;
  put();
  state.textContent = "";
};
source.onerror = () => { state.textContent = "No connection to the console: this page is not up to date."; };
document.addEventListener("focusout", () => setTimeout(put, 0));
document.addEventListener("selectionchange", put);
