#!/usr/bin/env python3
"""The programs on the pages of the documentation, run as they stand there with the official SDKs, and the README's session.

    python3 tests/docs/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, Node 20, and pip and npm for the first run: the packages are kept in ~/.cache/isopod/sdk. `cli::docs` runs the
commands of the pages. Afterwards nothing of the server may be left on the host.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "sdk"))

from harness.packages import node_project, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-v1"
PYTHON = "2.11.5"
DEADLINE = 300
# The page, the language, which of its programs, a pattern for all that it prints, and its package for JavaScript.
PROGRAMS = [
    ("README.md", "python", 0, r"hello\n\n", None),
    ("docs/quick-start.md", "python", 0, r"hello\n\nkept until the sandbox ends\n", None),
    ("docs/quick-start.md", "python", 1, r"42\n", None),
    ("docs/move-from-e2b.md", "python", 0, r"built\n\n", None),
    ("docs/e2b.md", "python", 0, r"hello from /home/user/hello.py\n\n", None),
    ("docs/e2b.md", "js", 0, r"hello from /home/user/hello.js\n\n", ("e2b", "2.51.0")),
    ("docs/storage.md", "python", 0, r"5\n\n", None),
    ("docs/snapshots.md", "python", 0, r"prepared:default\nprepared\nTrue\n", None),
    ("docs/snapshots.md", "python", 1, r"common\ncommon\ncommon\n", None),
    ("docs/interpreter.md", "python", 0, r"42\n<div>.*<table.*</div>\n", None),
    ("docs/interpreter.md", "python", 2, r"2\n", None),
    ("docs/interpreter.md", "python", 3, r"\[1, 0, 0\]\n\[0, 1, 0\]\n\[0, 0, 1\]\n", None),
    ("docs/interpreter.md", "js", 0, r"\[ 'hello\\n' \] 42\n", ("@e2b/code-interpreter", "2.8.0")),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    options = parser.parse_args()
    isopod, problems = options.isopod.resolve(), []
    chosen = [program for program in PROGRAMS if is_chosen(name_of(program), options.only)]
    if chosen:
        problems += run_programs(isopod, chosen)
    if is_chosen("session", options.only):
        problems += run_session(isopod)
    if problems:
        sys.exit("\n".join(problems))


def is_chosen(name, only):
    return not only or any(text in name for text in only)


def name_of(program):
    page, language, number, *_ = program
    return f"{page} {language} {number + 1}"


def run_programs(isopod, programs):
    server, problems = Server(isopod, prepare=TEMPLATE), []
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        for program in programs:
            problems += run_program(server, program)
    except Exception as error:
        problems.append(f"the run broke off: {error!r}\n{server.tail()}")
    finally:
        problems += server.stop()
    return problems


def run_program(server, program):
    page, language, number, expected, package = program
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    if len(found) <= number:
        return report(program, f"the page has only {len(found)} programs")
    if language == "python":
        command, place = [str(python_of(PYTHON, "e2b-code-interpreter")), "-c", found[number]], server.home
    else:
        # Node.js finds packages from the directory in which it runs what is typed.
        command, place = ["node", "--input-type=module", "--eval", found[number]], node_project(*package)
    done = subprocess.run(command, cwd=place, env=server.environment(), capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode or not re.fullmatch(expected, done.stdout, re.DOTALL):
        return report(program, f"it ended with {done.returncode} and printed {done.stdout!r}\n{done.stderr}")
    return report(program, None)


def run_session(isopod):
    command = [sys.executable, str(ROOT / "docs" / "demo" / "record.py"), "--isopod", str(isopod), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    print(f"{'FAILED' if done.returncode else 'ok'} session", flush=True)
    return [done.stdout + done.stderr] if done.returncode else []


def report(program, problem):
    print(f"{'FAILED' if problem else 'ok'} {name_of(program)}", flush=True)
    return [f"{name_of(program)}: {problem}"] if problem else []


if __name__ == "__main__":
    main()
