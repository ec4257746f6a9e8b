// A small editor: a text area above a colored copy of its text.

const WORDS = {
  py: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield",
  js: "async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof let new null of return static super switch this throw true try typeof undefined var void while yield",
  rs: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  sh: "case do done elif else esac exit export fi for function if in local return set shift then unset until while",
  go: "break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select struct switch true type var",
  c: "auto bool break case char class const continue default delete do double else enum extern false float for if inline int long namespace new nullptr private public return short signed sizeof static struct switch template this true typedef unsigned using virtual void volatile while",
  sql: "and as by create delete desc drop from group having in index insert into is join left limit not null on or order primary select set table update values where",
  json: "true false null",
};
const SAME = { ts: "js", tsx: "js", jsx: "js", mjs: "js", cjs: "js", bash: "sh", zsh: "sh", h: "c", cpp: "c", hpp: "c", cc: "c", java: "c", cs: "c", yml: "yaml", ipynb: "json" };
const HASH = ["py", "sh", "yaml", "toml", "dockerfile", "makefile", "rb", "conf", "ini", "cfg"];
/** Coloring long texts makes typing slow. */
const MAX_COLORED = 200_000;

function grammar(ending) {
  const kind = SAME[ending] ?? ending;
  const words = WORDS[kind]?.split(" ").join("|");
  const comment = HASH.includes(kind) ? "#[^\\n]*" : kind === "sql" ? "--[^\\n]*" : ["md", "txt", "csv", "json"].includes(kind) ? "(?!)" : "//[^\\n]*|/\\*[\\s\\S]*?\\*/";
  const text = kind === "py" ? `"""[\\s\\S]*?"""|'''[\\s\\S]*?'''|` : "";
  if (["md", "txt", "csv", "log"].includes(kind)) return null;
  return new RegExp(
    `(?<comment>${comment})|(?<string>${text}"(?:\\\\.|[^"\\\\\\n])*"|'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\`)|(?<number>\\b\\d[\\d_.a-fx]*\\b)|(?<word>\\b(?:${words ?? "(?!)"})\\b)`,
    kind === "sql" ? "gi" : "g",
  );
}

function colored(text, rule) {
  const parts = document.createDocumentFragment();
  let at = 0;
  if (rule && text.length < MAX_COLORED) {
    for (const found of text.matchAll(rule)) {
      parts.append(text.slice(at, found.index));
      const span = document.createElement("span");
      span.className = `c-${Object.entries(found.groups).find(([, match]) => match !== undefined)[0]}`;
      span.textContent = found[0];
      parts.append(span);
      at = found.index + found[0].length;
    }
  }
  // The line break at the end needs something behind it to have a height.
  parts.append(`${text.slice(at)}\n`);
  return parts;
}

for (const editor of document.querySelectorAll(".editor")) {
  const area = editor.querySelector("textarea");
  const [numbers, colors] = [editor.querySelector(".numbers"), editor.querySelector(".colors")];
  const rule = grammar(editor.dataset.ending);
  const bar = editor.nextElementSibling;
  const [button, state] = [bar.querySelector("[data-save-file]"), bar.querySelector("[role=status]")];
  let saved = area.value;
  let lines = 0;
  let drawing = 0;

  const follow = () => {
    colors.scrollTop = numbers.scrollTop = area.scrollTop;
    colors.scrollLeft = area.scrollLeft;
  };
  const draw = () => {
    drawing = 0;
    colors.replaceChildren(colored(area.value, rule));
    const count = area.value.split("\n").length;
    if (count !== lines) {
      numbers.textContent = Array.from({ length: count }, (_, line) => line + 1).join("\n");
      lines = count;
    }
    follow();
  };
  area.addEventListener("input", () => {
    state.textContent = area.value === saved ? "" : "Not saved yet";
    drawing ||= requestAnimationFrame(draw);
  });
  area.addEventListener("scroll", follow);
  draw();

  const save = async () => {
    const text = area.value;
    const body = editor.dataset.newline === "crlf" ? text.replaceAll("\n", "\r\n") : text;
    const headers = { "x-csrf-token": document.body.dataset.csrf, "content-type": "application/octet-stream" };
    state.textContent = "Saving…";
    const answer = await fetch(editor.dataset.save, { method: "POST", headers, body }).catch(() => null);
    if (answer?.ok) {
      saved = text;
      state.textContent = "Saved";
    } else {
      const told = await answer?.json().catch(() => null);
      state.textContent = `Not saved: ${told?.message ?? "the connection broke"}`;
    }
  };
  button.addEventListener("click", save);
  area.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      save();
    }
  });
  addEventListener("beforeunload", (event) => { if (area.value !== saved) event.preventDefault(); });
}
