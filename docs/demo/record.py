#!/usr/bin/env python3
"""Records the terminal session of the README: runs the commands below in one shell and draws what they printed.

    python3 docs/demo/record.py --isopod target/release/isopod            # writes docs/demo/session.svg
    python3 docs/demo/record.py --isopod target/debug/isopod --check      # fails if the session would look different

Needs root, and pip for the first run. The state directory, the port and the SDK are the script's own, set by variables and
removed afterwards; the template of the code interpreter is kept in ~/.cache/isopod.
"""

import argparse
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
PICTURE = HERE / "session.svg"
sys.path.insert(0, str(HERE.parents[1] / "tests" / "sdk"))

from harness.packages import cache_root, python_of  # noqa: E402
from harness.server import _free_port  # noqa: E402

SDK = "2.11.5"
AGENT = """\
from e2b_code_interpreter import Sandbox

with Sandbox.create() as sandbox:
    sandbox.run_code("x = 20")
    print(sandbox.run_code("x * 2 + 2").text)
"""
# Each is typed as it stands here. Empty lines separate what belongs together.
SESSION = """\
isopod run -- sh -c 'id -un; sudo rm -rf /usr/bin && echo gone'
ls -d /usr/bin

isopod serve > serve.log 2>&1 &
until grep -s 'is ready' serve.log; do sleep 0.2; done
eval "$(isopod env)"
cat agent.py
python agent.py

ID=$(isopod create --detach)
isopod exec $ID -- sh -c 'echo still here > note'
kill -9 $!; wait 2> /dev/null
isopod serve > again.log 2>&1 &
until grep -s 'is ready' again.log; do sleep 0.2; done
isopod exec $ID -- cat note
"""
# What ends the server and its sandboxes after the recording.
CLEAN_UP = 'kill $!; wait $!; isopod --state-dir "$ISOPOD_STATE_DIR" uninstall --yes'
MARK = "\x1e"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the picture instead of writing it")
    options = parser.parse_args()
    picture = draw(record(options.isopod.resolve()))
    if not options.check:
        PICTURE.write_text(picture)
    elif picture != PICTURE.read_text():
        sys.exit(f"the session has changed:\n{as_text(PICTURE.read_text())}\nis now\n{as_text(picture)}")


def record(isopod):
    """Returns a list of commands with their output. An empty command is an empty line."""
    with tempfile.TemporaryDirectory(prefix="isopod-demo-") as place:
        place = Path(place)
        output = type_into_shell(script(), place, environment(isopod, place))
    pieces = output.split(MARK)[:-1]
    commands = SESSION.splitlines()
    typed = [command for command in commands if command]
    if len(pieces) != len(typed) + 1:
        sys.exit(f"the session broke off:\n{output}")
    printed = dict(zip(typed_positions(commands), pieces))
    failed = [typed[at] for at, piece in enumerate(pieces[:-1]) if not piece.endswith("\x1f0")]
    if failed or not pieces[-1].endswith("\x1f0"):
        sys.exit(f"a command failed: {failed or CLEAN_UP}\n{output}")
    return [(command, printed[at].rpartition("\x1f")[0] if command else "") for at, command in enumerate(commands)]


def typed_positions(commands):
    return [at for at, command in enumerate(commands) if command]


def script():
    """Each command, followed by its exit status and a mark."""
    report = rf"printf '\037%s\036' $?"
    commands = [command for command in SESSION.splitlines() if command] + [CLEAN_UP]
    return "\n".join(f"{command}\n{report}" for command in commands)


def environment(isopod, place):
    (place / "agent.py").write_text(AGENT)
    (place / "bin").mkdir()
    (place / "bin" / "isopod").symlink_to(isopod)
    state = place / "state"
    state.mkdir()
    shared = cache_root().parent / "templates"
    shared.mkdir(parents=True, exist_ok=True)
    (state / "templates").symlink_to(shared)
    path = [str(place / "bin"), str(python_of(SDK, "e2b-code-interpreter").parent), os.environ["PATH"]]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("E2B_", "ISOPOD_")) and not k.lower().endswith("_proxy")}
    own = {"PATH": ":".join(path), "ISOPOD_STATE_DIR": str(state), "ISOPOD_LISTEN": f"127.0.0.1:{_free_port()}"}
    return clean | own | {"TERM": "dumb"}


def type_into_shell(text, place, variables):
    """Runs a script on a terminal and returns what appears there."""
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(["bash", "--norc", "-c", text], cwd=place, env=variables, stdin=subprocess.DEVNULL,
                             stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last program has closed the terminal
            break
        seen += part
        if not part:
            break
    os.close(ours)
    shell.wait()
    return seen.decode().replace("\r\n", "\n")


def draw(session):
    lines = []
    for command, output in session:
        lines.append(("typed", command) if command else ("", ""))
        lines += [("", line) for line in output.splitlines()]
    width, step, left, top = 700, 20, 18, 52
    height = top + step * len(lines)
    rows = []
    for at, (kind, text) in enumerate(lines):
        y = top + step * at
        if kind:
            rows.append(f'<text x="{left}" y="{y}" class="typed"><tspan class="prompt"># </tspan>{escape(text)}</text>')
        elif text:
            rows.append(f'<text x="{left}" y="{y}">{escape(text)}</text>')
    return PAGE.format(width=width, height=height, rows="\n  ".join(rows))


def as_text(picture):
    return re.sub(r"<[^>]*>", "", picture.split("</style>")[-1])


PAGE = """\
<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="A terminal session with isopod">
  <!-- Written by docs/demo/record.py from what the commands printed. Do not edit. -->
  <style>
    text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #adbac7; white-space: pre; }}
    .typed {{ fill: #f0f6fc; }}
    .prompt {{ fill: #57ab5a; }}
  </style>
  <rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>
  <circle cx="22" cy="20" r="6" fill="#e5534b"/><circle cx="42" cy="20" r="6" fill="#c69026"/><circle cx="62" cy="20" r="6" fill="#57ab5a"/>
  {rows}
</svg>
"""


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("sandboxes need root")
    main()
