// A terminal in a sandbox. It belongs to the sandbox, not to this page: when the connection breaks, because the server
// restarts or the laptop slept, the page connects to it again by its pid.

import { call, CallError, fromBase64, stream, toBase64 } from "./rpc.js";

const place = document.getElementById("terminal");
const state = document.getElementById("terminal-state");
const title = document.getElementById("terminal-title");
const FIRST_PAUSE = 300;
const LONGEST_PAUSE = 5000;
/** After this time in the background, the connection is given back. Output waits in the sandbox. */
const HIDDEN = 60_000;

// xterm.js writes its styles into `style` elements, which our policy forbids. It gets sheets made by script instead.
const create = document.createElement.bind(document);
document.createElement = (name, options) => {
  const element = create(name === "style" ? "meta" : name, options);
  if (name === "style") {
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text), get: () => "" });
    Object.defineProperty(element, "sheet", { get: () => sheet });
  }
  return element;
};

function show(kind, text) {
  state.dataset.kind = kind;
  state.textContent = text;
}

const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));

class Session {
  constructor(pid) {
    this.pid = pid;
    this.over = false;
    this.queue = [];
    this.sending = false;
    this.connection = null;
    this.terminal = new Terminal({
      cursorBlink: true,
      scrollback: 10_000,
      fontSize: 13,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      screenReaderMode: false,
      theme: { background: "#101416", foreground: "#e4e9e6", cursor: "#7cc9b0", selectionBackground: "#3b5a50" },
      // Sandboxes write what they like: no links, no clipboard, no window operations.
      linkHandler: { activate() {} },
    });
    this.fit = new FitAddon.FitAddon();
    this.terminal.loadAddon(this.fit);
    place.replaceChildren();
    this.terminal.open(place);
    this.fit.fit();
    this.terminal.textarea.setAttribute("aria-label", "Terminal input");
    this.terminal.onData((text) => this.send(new TextEncoder().encode(text)));
    this.terminal.onBinary((text) => this.send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
    this.terminal.onResize(() => this.resize());
    this.terminal.onTitleChange((text) => { title.textContent = [...text].slice(0, 80).join(""); });
    this.terminal.attachCustomKeyEventHandler((event) => this.key(event));
    this.terminal.focus();
    this.run();
  }

  key(event) {
    if (event.type !== "keydown" || !event.ctrlKey || !event.shiftKey) return true;
    if (event.code === "KeyC" && this.terminal.hasSelection()) {
      event.preventDefault();
      navigator.clipboard?.writeText(this.terminal.getSelection());
      return false;
    }
    // The browser pastes by itself.
    if (event.code === "KeyV") return false;
    if (event.code === "Escape") {
      document.querySelector(".terminal-bar button").focus();
      return false;
    }
    return true;
  }

  url(method) {
    return `${place.dataset.rpc}/${method}`;
  }

  size() {
    return { cols: this.terminal.cols, rows: this.terminal.rows };
  }

  async run() {
    let pause = FIRST_PAUSE;
    while (!this.over) {
      try {
        show("busy", this.pid ? "connecting" : "starting");
        for await (const { event } of this.open()) {
          pause = FIRST_PAUSE;
          this.take(event ?? {});
        }
        if (!this.over) throw new CallError(0, "unavailable", "the stream ended");
      } catch (error) {
        if (this.over) return;
        if (error.status === 401) return show("bad", "signed out; load the page again");
        const gone = error.status === 404 || error.code === "not_found";
        if (gone || (!this.pid && error.status >= 400 && error.status < 500)) {
          return this.end(gone && this.pid ? "this terminal has ended" : error.message);
        }
        show("waiting", document.hidden ? "waiting in the background" : "reconnecting");
        if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
        await wait(pause);
        pause = Math.min(pause * 2, LONGEST_PAUSE);
      }
    }
  }

  open() {
    this.connection = new AbortController();
    const { signal } = this.connection;
    if (this.pid) return stream(this.url("Connect"), { process: { pid: this.pid } }, signal);
    const process = { cmd: "/bin/bash", args: ["-i", "-l"], envs: { TERM: "xterm-256color", LANG: "C.UTF-8" } };
    const tag = `${place.dataset.tag}-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
    return stream(this.url("Start"), { process, pty: { size: this.size() }, tag }, signal);
  }

  take(event) {
    if (event.start) {
      this.pid = event.start.pid;
      history.replaceState(null, "", `#${this.pid}`);
      mark(this.pid);
      show("good", `connected, pid ${this.pid}`);
      this.resize();
      this.flush();
    }
    if (event.data?.pty) this.terminal.write(fromBase64(event.data.pty));
    if (event.end) this.end(`ended: ${event.end.status ?? "exit"}`);
  }

  end(text) {
    this.over = true;
    show("quiet", text);
    this.terminal.write("\r\n\x1b[2m[" + text.replace(/[^\x20-\x7e]/g, "?") + "]\x1b[0m\r\n");
    this.terminal.options.disableStdin = true;
  }

  close() {
    this.over = true;
    this.connection?.abort();
    this.terminal.dispose();
  }

  send(bytes) {
    this.queue.push(bytes);
    this.flush();
  }

  /** One call at a time, so that input arrives in its order. What is typed meanwhile goes with the next call. */
  async flush() {
    if (this.sending || !this.pid || this.over) return;
    this.sending = true;
    while (this.queue.length && !this.over) {
      const bytes = Uint8Array.from(this.queue.flatMap((piece) => [...piece]));
      this.queue = [];
      try {
        await call(this.url("SendInput"), { process: { pid: this.pid }, input: { pty: toBase64(bytes) } });
      } catch (error) {
        if (error.code === "not_found" || error.status === 404) break;
        // It may have arrived, so it is not sent again. The stream connects again by itself.
        show("waiting", "input was not taken");
        break;
      }
    }
    this.sending = false;
  }

  resize() {
    if (!this.pid || this.over) return;
    call(this.url("Update"), { process: { pid: this.pid }, pty: { size: this.size() } }).catch(() => {});
  }
}

function mark(pid) {
  for (const link of document.querySelectorAll("a[data-terminal]")) {
    link.toggleAttribute("aria-current", link.dataset.terminal === String(pid));
  }
}

if (place) {
  const wanted = () => Number(location.hash.slice(1)) || null;
  let session = new Session(wanted());
  const replace = (pid) => {
    session.close();
    title.textContent = "";
    session = new Session(pid);
  };
  document.querySelector('[data-terminal="new"]').addEventListener("click", () => replace(null));
  addEventListener("hashchange", () => { if (wanted() && wanted() !== session.pid) replace(wanted()); });
  new ResizeObserver(() => session.fit.fit()).observe(place);
  let timer = null;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => session.pid && session.connection?.abort(), HIDDEN);
  });
}
