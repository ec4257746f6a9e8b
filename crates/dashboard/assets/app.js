// What all pages do: colors, keyboard, live content, relative times, questions before changes.

import { refresh } from "./live.js";

const root = document.documentElement;

function toggleTheme() {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("isopod-theme", root.dataset.theme);
  dispatchEvent(new Event("isopod:theme"));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("themeToggle" in button.dataset) toggleTheme();
  if ("help" in button.dataset) document.getElementById("help").showModal();
  if ("back" in button.dataset) history.back();
});

// Forms that end something ask first.
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("change", (event) => {
  if ("submit" in event.target.dataset) event.target.form.requestSubmit();
});

// `/` searches, `g` and a letter go to a page, `?` shows all of this.
let gone = 0;
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable], .terminal-box, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    } else location.href = "/dashboard/sandboxes#q";
  } else if (event.key === "?") {
    document.getElementById("help")?.showModal();
  } else if (event.key === "g") {
    gone = event.timeStamp;
    return;
  } else if (event.timeStamp - gone < 1500) {
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) location.href = link.href;
  }
  gone = 0;
});
if (location.hash === "#q") document.getElementById("q")?.focus();

function relative(seconds) {
  const size = Math.abs(seconds);
  const text =
    size < 60 ? `${Math.floor(size)} s`
    : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 172800 ? `${Math.floor(size / 3600)} h`
    : `${Math.floor(size / 86400)} d`;
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[datetime]")) {
    const text = relative((Date.parse(element.dateTime) - Date.now()) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}, 1000);

refresh.start();
