// Keeps parts of a page up to date: when the server says that something changed, or every few seconds, the page is
// loaded again, and elements with `data-part` are replaced if they differ.

let source = null;
let timer = null;
let loading = false;
let again = false;

async function load() {
  if (loading) {
    again = true;
    return;
  }
  loading = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.status === 401) {
      location.reload();
      return;
    }
    if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.body.classList.remove("offline");
  } catch {
    // The server restarts. The next try will tell.
    document.body.classList.add("offline");
  } finally {
    loading = false;
  }
  if (again) {
    again = false;
    setTimeout(load, 300);
  }
}

function replace(next) {
  for (const part of document.querySelectorAll("[data-part][id]")) {
    const fresh = next.getElementById(part.id);
    if (!fresh || fresh.outerHTML === part.dataset.seen) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    if (focused?.matches("input, textarea, select")) continue;
    const position = focused && [...part.querySelectorAll("a, button")].indexOf(focused);
    const seen = fresh.outerHTML;
    const node = document.importNode(fresh, true);
    part.replaceWith(node);
    node.dataset.seen = seen;
    if (position !== null && position >= 0) node.querySelectorAll("a, button")[position]?.focus();
  }
}

function open() {
  const { live, refresh: seconds } = document.body.dataset;
  if (live && !source) {
    source = new EventSource(live);
    source.addEventListener("changed", load);
  }
  if (seconds && !timer) timer = setInterval(load, Number(seconds) * 1000);
}

function close() {
  source?.close();
  source = null;
  clearInterval(timer);
  timer = null;
}

// Browsers have few connections for each server, so hidden pages give theirs back.
function follow() {
  if (document.hidden) close();
  else {
    open();
    if (document.body.dataset.refresh) load();
  }
}

export const refresh = {
  start() {
    document.addEventListener("visibilitychange", follow);
    if (!document.hidden) open();
  },
  now: load,
};
