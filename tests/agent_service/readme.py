"""The commands of examples/agent-service/README.md, run as they stand there."""

import re
import subprocess
from dataclasses import dataclass

from places import EXAMPLE

PAGE = EXAMPLE / "README.md"


@dataclass
class Command:
    words: str
    #: What the page shows below it. `…` stands for any text of a line.
    expected: str


def blocks():
    """The `console` blocks of the page: install, server, service, workflow, plan."""
    found = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [_commands(block) for block in found]


def words(block):
    return "\n".join(command.words for command in block)


def run(block, place, environment):
    """Runs a block in one shell, as a reader pastes it, and compares what each command prints."""
    script = "".join(f"{command.words}\nprintf '\\0%s\\0' $?\n" for command in block)
    done = subprocess.run(["bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    parts = done.stdout.split("\0")
    for command, printed, status in zip(block, parts[::2], parts[1::2], strict=False):
        assert status == "0", f"{command.words} ended with {status}: {printed}{done.stderr}"
        pattern = re.escape(command.expected).replace("…", ".*")
        assert re.fullmatch(pattern, printed), f"{command.words} printed:\n{printed}instead of:\n{command.expected}{done.stderr}"
    assert len(parts) == 2 * len(block) + 1, f"the shell broke off: {done.stdout}{done.stderr}"


def _commands(block):
    commands = []
    for line in block.splitlines(keepends=True):
        if line.startswith("# "):
            commands.append(Command(line[2:].strip(), ""))
        else:
            commands[-1].expected += line
    return commands
