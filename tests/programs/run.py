#!/usr/bin/env python3
"""Programs that people run in sandboxes: each is installed in one and used there, by root and by `user`.

    python3 tests/programs/run.py --isopod target/debug/isopod [--only NAME] [--write-docs]

Needs root, ssh, and apt, npm and PyPI for the packages: a run downloads more than a gigabyte. A program that fails doesn't end the
run. The last line is `N passed, N failed, N skipped`; programs are skipped whose packages cannot be downloaded from here.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "sdk")]

from harness.packages import PYTHON_VERSIONS, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

from runner import page  # noqa: E402
from runner.outcome import FAILS, Outcome  # noqa: E402

DEADLINE = 1500
# A browser and a compiler need more than the usual gigabyte. One sandbox runs at a time.
SETTINGS = """
[pool]
ready = 1
prepared = 1

[sandbox]
memory = "2G"

[sandbox.allow]
"*" = ["userns", "fuse"]
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="programs whose name has this text")
    parser.add_argument("--write-docs", action="store_true", help="write the rows into docs/compatibility.md")
    return parser.parse_args()


def main():
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args = arguments()
    server, outcomes, problems = Server(args.isopod.resolve()), [], []
    settings = server.home / "settings.toml"
    settings.write_text(SETTINGS)
    server.options = ["--config", str(settings)]
    try:
        server.start()
        for name, title in chosen(server, args.only):
            outcomes.append(run(server, name, title))
            if args.write_docs:
                page.write(outcomes[-1:], [title for _, title in programs(server)])
    except Exception as error:
        problems.append(f"the run broke off: {error!r}\n{server.tail()}")
    finally:
        problems += server.stop()
    sys.exit(0 if print_total(outcomes, problems) else 1)


def chosen(server, only):
    return [(name, title) for name, title in programs(server) if not only or any(text in name for text in only)]


def programs(server):
    """Name and title of each program, in the order of the table."""
    done = subprocess.run(command(), env=environment(server), capture_output=True, text=True, check=True)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def command(*words):
    return [str(python_of(PYTHON_VERSIONS[0])), str(HERE / "runner" / "one.py"), *words]


def environment(server):
    return server.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}


def run(server, name, title):
    """Runs one program in a process of its own, and prints what came of it."""
    start = time.monotonic()
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command(name), env=environment(server), text=True, start_new_session=True, **streams)
    try:
        output, _ = process.communicate(timeout=DEADLINE)
        outcome = Outcome.parse(output.splitlines()[-1])
    except subprocess.TimeoutExpired:
        outcome = Outcome.broken(name, title, f"did not end in {DEADLINE} s")
    except (ValueError, IndexError, TypeError):
        outcome = Outcome.broken(name, title, f"printed no outcome:\n{output[-3000:]}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    print_outcome(outcome, time.monotonic() - start)
    return outcome


def print_outcome(outcome, seconds):
    word = "FAILED" if outcome.problems else "absent" if outcome.is_absent else "ok"
    told = ", ".join(f"{account} {cell}" for account, cell in outcome.cells.items())
    print(f"{word:8}{outcome.name} {outcome.version}: {told} ({seconds:.0f} s)", flush=True)
    for account, error in outcome.errors.items():
        print("\n".join(f"    {line}" for line in [f"as {account}:", *error.splitlines()]), flush=True)


def print_total(outcomes, problems):
    """Prints the table and the total. Returns True if nothing failed that should work."""
    today = time.strftime("%Y-%m-%d")
    print("\n".join(["", *page.table(page.cells(outcome, today) for outcome in outcomes), ""]))
    for outcome in outcomes:
        for account, why in outcome.gaps.items():
            if outcome.cells.get(account) == FAILS:
                print(f"known gap: {outcome.name} as {account}: {why}")
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    skipped = sum(outcome.is_absent and not outcome.problems for outcome in outcomes)
    passed = len(outcomes) - failed - skipped
    if skipped > passed:
        problems = [*problems, "most packages are out of reach: compare with the network of the host"]
    elif passed == 0 and not problems:
        problems = ["no program ran"]
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{passed} passed, {failed + len(problems)} failed, {skipped} skipped")
    return failed == 0 and not problems


if __name__ == "__main__":
    main()
