#!/usr/bin/env python3
"""R and Java in `run_code`: builds the template `code-interpreter-full` and uses it with E2B's own SDKs.

    python3 tests/languages/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, Node, and the Debian, npm and PyPI registries. Keeps the built template in ~/.cache/isopod/templates.
The last line is `N passed, N failed`.
"""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tests" / "sdk"))

from harness import packages  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-full"
# The newest, and the oldest that finds a server by variables.
PYTHON_VERSIONS = [packages.PYTHON_INTERPRETER_VERSIONS[0], packages.PYTHON_INTERPRETER_VERSIONS[-1]]
JS_VERSIONS = [packages.JS_INTERPRETER_VERSIONS[0], packages.JS_INTERPRETER_VERSIONS[-1]]
DEADLINE = 900


def suites(only):
    """Name, command and variables of each SDK's cases, by version."""
    chosen = [word for text in only for word in ("--only", text)]
    for version in PYTHON_VERSIONS:
        python = str(packages.python_of(version, "e2b-code-interpreter"))
        for flavour in ("sync", "async"):
            yield f"python {version} {flavour}", [python, str(HERE / "cases.py"), flavour, *chosen], {}
    reporter = ROOT / "tests" / "sdk" / "js" / "reporter.mjs"
    command = ["node", "--test", f"--test-reporter={reporter}", "--test-force-exit", str(HERE / "cases.test.mjs")]
    for version in JS_VERSIONS:
        package = "@e2b/code-interpreter"
        variables = {
            "SDK_PACKAGE": package,
            "SDK_PROJECT": str(packages.node_project(package, version)),
            "SDK_BUNDLE": "require" if version in packages.JS_BY_REQUIRE else "import",
            "SDK_ONLY": "\n".join(only),
        }
        yield f"js {version}", command, variables


def run(name, command, variables):
    """Runs the cases of one SDK. Returns how many passed and failed."""
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=DEADLINE)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    for result in results:
        print(f"{result['outcome']:8}{name}: {result['name']} ({result['seconds']} s)", flush=True)
        if result["outcome"] == "failed":
            print(result["error"], flush=True)
    failed = sum(result["outcome"] == "failed" for result in results)
    if done.returncode != 0 and failed == 0:
        print(f"failed  {name}: it ended with {done.returncode}\n{done.stderr[-3000:]}", flush=True)
        failed = 1
    return sum(result["outcome"] == "passed" for result in results), failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="cases whose feature:name has this text")
    args = parser.parse_args()
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, passed, failed = Server(args.isopod.resolve(), prepare=TEMPLATE), 0, 0
    try:
        server.start()
        server.wait_for_template(TEMPLATE, deadline=1500)
        for name, command, variables in suites(args.only):
            good, bad = run(name, command, server.environment() | variables)
            passed, failed = passed + good, failed + bad
    finally:
        problems = server.stop()
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{passed} passed, {failed + len(problems)} failed")
    sys.exit(1 if failed or problems or not passed else 0)


if __name__ == "__main__":
    main()
