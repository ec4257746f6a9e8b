#!/usr/bin/env python3
"""The programs on the pages of the documentation, run as they stand there with the official SDKs, and the README's session. With
ISOPOD_FULL, also those that install packages or need a template that takes minutes to build.

    python3 tests/docs/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, Node 20, and pip and npm for the first run: the packages are kept in ~/.cache/isopod/sdk. `cli::docs` runs the
commands of the pages. Afterwards nothing of the server may be left on the host.
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "sdk"))

from harness.packages import node_project, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-v1"
PYTHON = "2.11.5"
DEADLINE = 300
FULL_TEMPLATE = "code-interpreter-full"
IS_FULL = os.environ.get("ISOPOD_FULL") == "1"


@dataclass
class Program:
    """A program on a page."""

    page: str
    language: str
    # Which of the page's programs in this language.
    number: int
    # A pattern for all that it prints.
    prints: str
    # Its package for JavaScript, and the version.
    package: tuple = None
    # Where the page shows a part of a program: the rest.
    before: str = ""
    after: str = ""
    # A template that is built for it.
    template: str = None
    # Whether it takes minutes, or needs packages from the network.
    is_full: bool = False

    @property
    def name(self):
        return f"{self.page} {self.language} {self.number + 1}"


IMPORT = "from e2b import Sandbox\n"
# A page that is served by the template of the program.
FLASK_APP = """
open("app.py", "w").write('''
from flask import Flask

app = Flask(__name__)


@app.get("/")
def page():
    return "served"


app.run(port=5000)
''')
"""
SEES_PAGE = """
print(sandbox.commands.run("curl --silent http://127.0.0.1:5000/").stdout)
sandbox.kill()
"""
SEES_FILE = """
other = Sandbox.create(metadata={"execution_id": "run-7"})
print(other.files.read("/opt/sentient/executions/run-7/results/a.json"))
sandbox.kill()
other.kill()
"""
SEES_SESSION = """
print(Sandbox.create(metadata={"isopod.session": run_id}).sandbox_id == sandbox.sandbox_id)
sandbox.kill()
"""

PROGRAMS = [
    Program("README.md", "python", 0, r"hello\n\n"),
    Program("docs/quick-start.md", "python", 0, r"hello\n\nkept until the sandbox ends\n"),
    Program("docs/quick-start.md", "python", 1, r"42\n"),
    Program("docs/move-from-e2b.md", "python", 0, r"built\n\n"),
    Program("docs/e2b.md", "python", 0, r"hello from /home/user/hello.py\n\n"),
    Program("docs/e2b.md", "python", 1, r"True\n", before=IMPORT + "run_id = 'run-1'\n", after=SEES_SESSION),
    Program("docs/e2b.md", "js", 0, r"hello from /home/user/hello.js\n\n", ("e2b", "2.51.0")),
    Program("docs/storage.md", "python", 0, r"5\n\n"),
    Program("docs/workspace.md", "python", 0, r"\{\}\n", before=IMPORT, after=SEES_FILE),
    Program("docs/templates.md", "python", 0, r".*\nserved\n", before=FLASK_APP, after=SEES_PAGE, is_full=True),
    Program("docs/snapshots.md", "python", 0, r"prepared:default\nprepared\nTrue\n"),
    Program("docs/snapshots.md", "python", 1, r"common\ncommon\ncommon\n"),
    Program("docs/interpreter.md", "python", 0, r"42\n<div>.*<table.*</div>\n"),
    Program(
        "docs/interpreter.md", "python", 1, r"42\n",
        before="from e2b_code_interpreter import Sandbox\n", template=FULL_TEMPLATE, is_full=True,
    ),
    Program("docs/interpreter.md", "python", 2, r"2\n"),
    Program("docs/interpreter.md", "python", 3, r"\[1, 0, 0\]\n\[0, 1, 0\]\n\[0, 0, 1\]\n"),
    Program("docs/interpreter.md", "js", 0, r"\[ 'hello\\n' \] 42\n", ("@e2b/code-interpreter", "2.8.0")),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    options = parser.parse_args()
    isopod, problems = options.isopod.resolve(), []
    chosen = [program for program in PROGRAMS if is_chosen(program.name, options.only) and (IS_FULL or not program.is_full)]
    if chosen:
        problems += run_programs(isopod, chosen)
    if is_chosen("session", options.only):
        problems += run_session(isopod)
    if problems:
        sys.exit("\n".join(problems))


def is_chosen(name, only):
    return not only or any(text in name for text in only)


def run_programs(isopod, programs):
    server, problems = Server(isopod, prepare=TEMPLATE), []
    try:
        for template in {program.template for program in programs} - {None}:
            server.build_template(template)
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
    found = re.findall(rf"```{program.language}\n(.*?)```", (ROOT / program.page).read_text(), re.DOTALL)
    if len(found) <= program.number:
        return report(program, f"the page has only {len(found)} programs")
    text = program.before + found[program.number] + program.after
    if program.language == "python":
        command, place = [str(python_of(PYTHON, "e2b-code-interpreter")), "-c", text], server.home
    else:
        # Node.js finds packages from the directory in which it runs what is typed.
        command, place = ["node", "--input-type=module", "--eval", text], node_project(*program.package)
    done = subprocess.run(command, cwd=place, env=server.environment(), capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode or not re.fullmatch(program.prints, done.stdout, re.DOTALL):
        return report(program, f"it ended with {done.returncode} and printed {done.stdout!r}\n{done.stderr}")
    return report(program, None)


def run_session(isopod):
    command = [sys.executable, str(ROOT / "docs" / "demo" / "record.py"), "--isopod", str(isopod), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    print(f"{'FAILED' if done.returncode else 'ok'} session", flush=True)
    return [done.stdout + done.stderr] if done.returncode else []


def report(program, problem):
    print(f"{'FAILED' if problem else 'ok'} {program.name}", flush=True)
    return [f"{program.name}: {problem}"] if problem else []


if __name__ == "__main__":
    main()
