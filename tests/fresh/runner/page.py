"""The table of fresh systems in docs/full-tests.md, between two comments."""

import datetime
import re

from runner.outcome import SKIPPED
from runner.readme import ROOT

PAGE = ROOT / "docs" / "full-tests.md"
BEGIN, END = "<!-- fresh: begin -->", "<!-- fresh: end -->"
HEADS = ["system", "Rust", "first command", "second command"]
COLUMNS = {"first": 2, "second": 3}
NOT_YET = "not yet"


def key(system):
    """The row of a system: two rows may have the same title."""
    return system.title, "packaged" if system.has_packaged_rust else "rustup"


def key_of_row(row):
    return row[0], "rustup" if row[1].startswith("rustup") else "packaged"


def write(system, rust, commit, outcomes, systems, page=PAGE, today=None):
    """Writes what came of one system. A command that did not run, or that was skipped, keeps its earlier result."""
    today = today or datetime.date.today().isoformat()
    text = page.read_text()
    rows = rows_of(text)
    ran = [outcome for outcome in outcomes if outcome.word != SKIPPED]
    if not ran:
        return
    row = rows.get(key(system), [system.title, "", NOT_YET, NOT_YET])
    row[1] = rust or row[1] or key(system)[1]
    for outcome in ran:
        row[COLUMNS[outcome.command]] = cell(outcome, commit, today)
    rows[key(system)] = row
    ordered = [rows[key(one)] for one in systems if key(one) in rows]
    block = "\n".join([BEGIN, *table(ordered), END])
    page.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: block, text, flags=re.DOTALL))


def cell(outcome, commit, today):
    time = f"{outcome.seconds / 60:.0f} min" if outcome.seconds >= 120 else f"{outcome.seconds:.0f} s"
    what = f"{outcome.word} in {time}, {outcome.detail}" if outcome.word == "passed" else f"**{outcome.word}**"
    return f"{today}, {(commit or 'unknown')[:7]}: {what}"


def table(rows):
    lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def rows_of(text):
    """The rows that the page has, by system."""
    section = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]
    return {key_of_row(row): row for row in rows}
