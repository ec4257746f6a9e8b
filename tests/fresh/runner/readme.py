"""The two commands, from the README."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HEADING = "## Two commands"


def commands(text=None):
    """The first and the second command below the heading."""
    text = (ROOT / "README.md").read_text() if text is None else text
    section = text.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    block = section.partition("```console\n")[2].partition("```")[0]
    found = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
    if len(found) != 2:
        raise RuntimeError(f"README.md has {len(found)} commands below “{HEADING}” instead of two")
    return found


def printed_by(command):
    """What the program of the first command prints."""
    found = re.search(r"""print\((["'])(.*?)\1\)""", command)
    if found is None:
        raise RuntimeError(f"the first command of README.md prints nothing: {command}")
    return found[2]
