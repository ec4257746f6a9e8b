#!/usr/bin/env python3
"""Runs E2B's own SDKs and CLI, as published, against an `isopod serve` of its own.

    python3 tests/sdk/run.py --isopod target/debug/isopod [--full] [--only TEXT] [--write-docs]

Needs root (as `isopod serve` does), Python 3.10 or newer, Node 20 or newer, and pip and npm for the first run: the
packages are kept in ~/.cache/isopod/sdk. With --full or ISOPOD_FULL=1, all cases run on all versions. Afterwards nothing of the server may be left on the host. The last line is
`N passed, N failed`.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import report  # noqa: E402
from harness.outside import Outside  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.suites import all_suites  # noqa: E402

INTERPRETER = "code-interpreter-v1"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    is_full = os.environ.get("ISOPOD_FULL") == "1"
    parser.add_argument("--full", action="store_true", default=is_full, help="all cases on all versions")
    parser.add_argument("--only", action="append", default=[], help="cases whose feature:name has this text")
    parser.add_argument("--suite", action="append", default=[], help="suites whose name has this text: 'js 2.51'")
    parser.add_argument("--jobs", type=int, default=2, help="suites at the same time")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--write-docs", action="store_true", help="write docs/compatibility.md")
    args = parser.parse_args()
    if args.write_docs and (args.only or args.suite or not args.full):
        parser.error("--write-docs writes the whole page: use it with --full, and without --only and --suite")
    return args


def run(args, suites):
    """Runs the suites. Returns what is wrong besides failed cases."""
    outside, problems = Outside(), []
    try:
        if not all(suite.has_interpreter for suite in suites):
            outside.open()
        for tls, interpreter in itertools.product((False, True), repeat=2):
            chosen = [suite for suite in suites if (suite.tls, suite.has_interpreter) == (tls, interpreter)]
            if chosen:
                server = Server(args.isopod.resolve(), tls, INTERPRETER if interpreter else "none")
                allow_kernel_feature(server)
                problems += run_against(server, outside, args, chosen)
    finally:
        outside.close()
    return problems


def allow_kernel_feature(server):
    """Allows one, and not the others, so that cases see both."""
    settings = server.home / "settings.toml"
    settings.write_text('[sandbox.allow]\n"*" = ["userns"]\n')
    server.options += ["--config", str(settings)]


def run_against(server, outside, args, suites):
    """Runs the suites against one server, from its start until it is removed."""
    problems = []
    try:
        differences = {}
        if server.prepare != "none":
            server.build_template(server.prepare)
            differences = server.package_differences()
        server.start()
        if server.prepare != "none":
            server.wait_for_template(server.prepare)
        environment = server.environment() | outside.environment() | {"ISOPOD_FULL": "1" if args.full else "0"}
        environment["ISOPOD_SUITE_PACKAGES"] = json.dumps(differences)
        pool = ThreadPoolExecutor(args.jobs)
        try:
            for suite in pool.map(lambda suite: run_one(suite, environment, args.only), suites):
                report.print_suite(suite)
        finally:
            # After Ctrl-C, nothing new is started.
            pool.shutdown(cancel_futures=True)
    except Exception as error:
        problems.append(f"the run broke off: {error!r}")
    finally:
        problems += server.stop()
    return problems


def run_one(suite, environment, only):
    suite.run(environment, only)
    return suite


def main():
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args = arguments()
    suites = [s for s in all_suites(args.full) if not args.suite or any(text in s.name for text in args.suite)]
    for suite in suites:
        suite.install()
    problems = run(args, suites)
    if args.json:
        args.json.write_text(json.dumps({suite.name: suite.results for suite in suites}, indent=1))
    if args.write_docs:
        version = subprocess.run([args.isopod, "--version"], capture_output=True, text=True).stdout.strip()
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(report.compatibility_page(suites, problems, version) + report.other_sections(PAGE))
    sys.exit(0 if report.print_total(suites, problems) else 1)


if __name__ == "__main__":
    main()
