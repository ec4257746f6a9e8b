"""The program of a framework: a file of its directory, or the snippet that the guide shows to readers."""

import re
import shutil
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"
# A comment before the code block names the framework.
SNIPPET = re.compile(r"<!-- tests/frameworks/([\w-]+) -->\n+```(\w+)\n(.*?)\n```", re.DOTALL)


def write_program(framework, home, place):
    """Puts the program into an empty directory. Returns the command that runs it."""
    name = "app.mjs" if framework.language == "js" else "app.py"
    file = framework.directory / name
    (place / name).write_text(file.read_text() if file.exists() else snippets()[framework.name])
    files = framework.directory / "files"
    if files.exists():
        shutil.copytree(files, place, dirs_exist_ok=True)
    if framework.language == "js":
        # Node.js looks for packages beside the program.
        (place / "node_modules").symlink_to(home / "node_modules")
        return ["node", str(place / name)]
    return [str(home / "bin" / "python"), str(place / name)]


def snippets():
    """The snippets of the guide, by framework."""
    return {name: code + "\n" for name, _, code in SNIPPET.findall(GUIDE.read_text())}
