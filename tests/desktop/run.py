#!/usr/bin/env python3
"""The template `desktop`, controlled by E2B's desktop SDKs and seen in a real Chromium through its stream.

    python3 tests/desktop/run.py --isopod target/debug/isopod [--only TEXT]

Needs Debian (Ubuntu's template has another browser), root, Node 20, Chromium, and pip, npm and apt for the first run:
building the template downloads hundreds of megabytes. The last line is `N passed, N failed`.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "sdk"))

from harness.packages import JS_DESKTOP_VERSIONS, PYTHON_DESKTOP_VERSIONS, node_project, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "desktop"
DEADLINE = 900


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    options = parser.parse_args()
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, passed, problems = Server(options.isopod.resolve(), prepare=TEMPLATE), 0, []
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        for name, command, variables in programs():
            print(f"{name}:", flush=True)
            done, failed = run(server, command, variables, options.only)
            passed += done
            problems += failed
    except Exception as error:
        problems.append(f"the run broke off: {error!r}\n{server.tail()}")
    finally:
        problems += server.stop()
    for problem in problems:
        print(f"problem: {problem}")
    if passed == 0:
        problems.append("no case ran")
    print(f"{passed} passed, {len(problems)} failed")
    sys.exit(1 if problems else 0)


def programs():
    """One for each version of the SDKs. Each prints a line `ok NAME` or `FAILED NAME` for each of its cases."""
    for version in PYTHON_DESKTOP_VERSIONS:
        yield f"python {version}", [str(python_of(version, "e2b-desktop")), str(HERE / "cases.py")], {}
    for version in JS_DESKTOP_VERSIONS:
        project = node_project("@e2b/desktop", version)
        yield f"js {version}", ["node", str(HERE / "cases.mjs")], {"SDK_PROJECT": str(project)}


def run(server, command, variables, only):
    environment = server.environment() | variables | {"PYTHONDONTWRITEBYTECODE": "1"}
    words = [*command, *only]
    program = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = program.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        program.kill()
        output, _ = program.communicate()
        output += f"\nFAILED {' '.join(words)} did not end"
    print(output, end="", flush=True)
    lines = output.splitlines()
    failed = [line for line in lines if line.startswith("FAILED ")]
    if program.returncode != 0 and not failed:
        failed = [f"{' '.join(words)} ended with {program.returncode}"]
    return sum(line.startswith("ok ") for line in lines), failed


if __name__ == "__main__":
    main()
