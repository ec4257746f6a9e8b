#!/usr/bin/env python3
"""Agent frameworks, as published, against an `isopod serve` of its own: with `isopod env --` and with variables alone.

    python3 tests/frameworks/run.py --isopod target/debug/isopod [--full] [--only NAME] [--write-docs]

The model of each agent is a script on loopback. Needs root, Node 20, and pip and npm for the first run: the packages are
kept in ~/.cache/isopod/frameworks. Three frameworks run. With --full, --write-docs or ISOPOD_FULL=1, all of them do; two of
those need Python 3.12.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "sdk")]

from harness.server import Server  # noqa: E402

from runner import page  # noqa: E402
from runner.attempt import Outcome, attempt, needs_env  # noqa: E402
from runner.frameworks import FRAMEWORKS  # noqa: E402
from runner.install import CannotInstall, installed, versions  # noqa: E402

TEMPLATE = "code-interpreter-v1"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--full", action="store_true", default=os.environ.get("ISOPOD_FULL") == "1", help="all frameworks")
    parser.add_argument("--only", action="append", default=[], help="frameworks whose name has this text")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/compatibility.md")
    return parser.parse_args()


def main():
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args = arguments()
    server, results, problems = Server(args.isopod.resolve(), prepare=TEMPLATE), [], []
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        for framework in chosen(args):
            results.append(page.Row(framework, *run(framework, server)))
            page.print_row(results[-1])
    except Exception as error:
        problems.append(f"the run broke off: {error!r}\n{server.tail()}")
    finally:
        problems += server.stop()
    if args.write_docs:
        version = subprocess.run([args.isopod, "--version"], capture_output=True, text=True).stdout.strip()
        page.write(results, version)
    failed = [row for row in results if row.has_failed]
    print("\n".join(["", *page.table(results), "", *problems]))
    print(f"{len(results) - len(failed)} passed, {len(failed) + len(problems)} failed")
    sys.exit(1 if failed or problems else 0)


def chosen(args):
    if args.only and not args.write_docs:
        return [one for one in FRAMEWORKS if any(text in one.name for text in args.only)]
    return [one for one in FRAMEWORKS if args.full or args.write_docs or one.every_change]


def run(framework, server):
    """Returns the installed versions, and the outcome of each way."""
    try:
        home = installed(framework)
        found = versions(framework, home)
    except CannotInstall as error:
        return {}, Outcome("fails", f"cannot be installed: {error}"), Outcome("not run")
    by_env = attempt(framework, home, server, "env")
    if needs_env(framework, found):
        return found, by_env, Outcome("SDK too old")
    return found, by_env, attempt(framework, home, server, "variables")


if __name__ == "__main__":
    main()
