"""The table of programs: printed, and kept in docs/compatibility.md between two comments."""

import datetime
import re
from pathlib import Path

from runner.outcome import ABSENT, ACCOUNTS, FAILS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
BEGIN, END = "<!-- programs: begin -->", "<!-- programs: end -->"
HEADS = ["program", "version", "as root", "as `user`", "note", "run"]
INTRODUCTION = [
    "## Programs in a sandbox",
    "",
    "Each program runs in a sandbox of the template `base`, with 2 GiB of memory unless the note says another size. The test installs",
    "it there with `apt-get`, `npm` or `pip`, unless the host has it, and uses it as root and as `user`: a server answers, a debugger",
    "stops at a line, a job fires. It fetches pages from outside, with `get_host`. **fails** is a gap of Isopod, and the note has the",
    "reason. *not reachable*: the machine of the run couldn't download it. `userns` and `fuse` are",
    "[kernel features](../SECURITY.md#kernel-features-that-you-can-allow).",
    "",
    "To generate this section again (don't edit it), or with `--only NAME` some of its rows:",
    "",
    "```sh",
    "sudo python3 tests/programs/run.py --isopod PATH --write-docs",
    "```",
    "",
]


def cells(outcome, today):
    words = [_word(outcome, account) for account in ACCOUNTS]
    reasons = [f"as {account}: {why}" for account, why in outcome.gaps.items() if outcome.cells.get(account) == FAILS]
    note = "; ".join(filter(None, [outcome.note, *reasons]))
    return [outcome.title, outcome.version, *words, note or "–", today]


def _word(outcome, account):
    word = outcome.cells.get(account, "–")
    return {FAILS: "**fails**", ABSENT: f"*{ABSENT}*"}.get(word, word)


def table(rows):
    lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    return lines + ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]


def _escaped(cell):
    return re.sub(r"(?<!\\)\|", r"\\|", cell)


def write(outcomes, titles, page=PAGE, today=None):
    """Writes the rows of a run. Rows of other programs stay as they are; `titles` has all programs, in order."""
    today = today or datetime.date.today().isoformat()
    text = page.read_text()
    rows = rows_of(text) | {outcome.title: cells(outcome, today) for outcome in outcomes}
    ordered = [rows[title] for title in titles if title in rows]
    block = "\n".join([BEGIN, *INTRODUCTION, *table(ordered), END])
    if BEGIN in text:
        text = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    else:
        text += f"\n{block}\n"
    page.write_text(text)


def rows_of(text):
    """The rows that the page has, by program."""
    _, _, section = text.partition(BEGIN)
    lines = [line for line in section.partition(END)[0].splitlines() if line.startswith("| ")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[1:]]
    return {row[0].strip(): [cell.strip() for cell in row] for row in rows}
