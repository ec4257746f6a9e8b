"""The texts of the seeds, whose own code some suites run.

They are not part of the repository: ISOPOD_SEEDS names their directory. Without it, they are in `shared/seeds` beside the
clone or beside the directory that contains it. In CI they must be there: a test that nothing runs shows nothing.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class NoSeeds(Exception):
    """The texts are not on this machine, so what needs them is skipped."""


def text(number):
    """The text of the first (0) to fourth (3) seed."""
    named = os.environ.get("ISOPOD_SEEDS")
    for place in [named] if named else [ROOT.parent / "shared" / "seeds", ROOT.parents[1] / "shared" / "seeds"]:
        found = sorted(Path(place).glob(f"{number:03}_*.txt"))
        if found:
            return found[0].read_text()
    absent = "the seeds' texts are not here; set ISOPOD_SEEDS to their directory"
    if os.environ.get("CI"):
        raise RuntimeError(f"CI runs the seeds' own code, and {absent}")
    raise NoSeeds(absent)


def blocks(number, language):
    """All code blocks of a language, without the indentation that lists give them."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text(number), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def block(number, language, marker):
    """The code block with this text in it."""
    [found] = [body for body in blocks(number, language) if marker in body]
    return found
