"""The seeds' own code, taken from their texts. They are not part of the repository: ISOPOD_SEEDS names their directory."""

import ast
import inspect
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Code that makes a package, which can be installed without a network.
PACKAGE = """
import zipfile
with zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('tiny.py', 'answer = 42')
    wheel.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')
    wheel.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('tiny-1.0.dist-info/RECORD', '')
"""


def text(number):
    """The text of the first (0) to fourth (3) seed. Skips the test if there is none."""
    named = os.environ.get("ISOPOD_SEEDS")
    for place in [named] if named else [ROOT.parent / "shared" / "seeds", ROOT.parents[1] / "shared" / "seeds"]:
        found = sorted(Path(place).glob(f"{number:03}_*.txt"))
        if found:
            return found[0].read_text()
    pytest.skip("the seeds' texts are not here; set ISOPOD_SEEDS to their directory")


def blocks(number, language):
    """All code blocks of a language, without the indentation that lists give them."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text(number), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def block(number, language, marker):
    """The code block with this text in it."""
    [found] = [body for body in blocks(number, language) if marker in body]
    return found


async def run(source, namespace, without=()):
    """Runs code that may `await` at its top level, without the classes and imports of these names."""
    tree = ast.parse(source)
    tree.body = [one for one in tree.body if getattr(one, "name", None) not in without]
    code = compile(tree, "seed", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, namespace)  # noqa: S307
    if inspect.isawaitable(done):
        await done
