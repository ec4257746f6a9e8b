"""The seeds' own code, taken from their texts. Tests that need a text are skipped where it is missing, and fail in CI."""

import ast
import inspect

import pytest
from harness import seeds

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
    return _found(seeds.text, number)


def blocks(number, language):
    """All code blocks of a language."""
    return _found(seeds.blocks, number, language)


def block(number, language, marker):
    """The code block with this text in it."""
    return _found(seeds.block, number, language, marker)


def _found(look, *arguments):
    try:
        return look(*arguments)
    except seeds.NoSeeds as absent:
        pytest.skip(str(absent))


async def run(source, namespace, without=()):
    """Runs code that may `await` at its top level, without the classes and imports of these names."""
    tree = ast.parse(source)
    tree.body = [one for one in tree.body if getattr(one, "name", None) not in without]
    code = compile(tree, "seed", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, namespace)  # noqa: S307
    if inspect.isawaitable(done):
        await done
