"""The table of a run: printed, and written into docs/compatibility.md between two comments."""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from runner.attempt import Outcome
from runner.frameworks import Framework

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
BEGIN, END = "<!-- frameworks: begin -->", "<!-- frameworks: end -->"


@dataclass
class Row:
    framework: Framework
    versions: dict
    by_env: Outcome
    by_variables: Outcome

    @property
    def outcomes(self):
        return {"isopod env": self.by_env, "variables": self.by_variables}

    @property
    def has_failed(self):
        return any(outcome.word == "fails" for outcome in self.outcomes.values())

    def cells(self):
        words = [outcome.word.replace("fails", "**fails**") for outcome in self.outcomes.values()]
        return [self.framework.title, self._list(self.framework.packages), self._list(self.framework.sdk), *words]

    def _list(self, names):
        return ", ".join(f"`{name}` {self.versions[name]}" for name in names if name in self.versions) or "–"


def print_row(row):
    print(f"{'FAILED' if row.has_failed else 'ok'} {row.framework.name}", flush=True)
    for way, outcome in row.outcomes.items():
        if outcome.word == "fails":
            print("\n".join(f"    {line}" for line in [way, *outcome.reason.splitlines()]), flush=True)


def table(rows):
    heads = ["framework", "packages", "E2B SDK", "`isopod env --`", "variables"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(row.cells()) + " |" for row in rows]


def write(rows, version, page=PAGE):
    text = page.read_text()
    block = "\n".join([BEGIN, *_section(rows, version), END])
    if BEGIN in text:
        text = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    else:
        text += f"\n{block}\n"
    page.write_text(text)


def _section(rows, version):
    today = datetime.date.today().isoformat()
    lines = [
        "## Agent frameworks",
        "",
        "Each framework runs an agent with its own E2B integration. A script takes the place of the model. It has the agent run",
        "code or a command, and the answer must come from a sandbox of the server. **SDK too old** means that the SDK that the",
        "framework pins doesn't find a server by variables; use [`isopod env --`](env.md). The [guide](frameworks.md) has programs",
        "to copy.",
        "",
        f"Run on {today} with {version}. To generate this section again (don't edit it):",
        "",
        "```sh",
        "sudo python3 tests/frameworks/run.py --isopod PATH --full --write-docs",
        "```",
        "",
        *table(rows),
    ]
    failures = [(row, way, outcome) for row in rows for way, outcome in row.outcomes.items() if outcome.word == "fails"]
    lines += [""]
    lines += [f"- {row.framework.title} with {way}: {outcome.reason.splitlines()[0]}" for row, way, outcome in failures]
    return [*lines, ""] if failures else lines
