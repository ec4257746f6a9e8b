#!/usr/bin/env python3
"""The README's two commands on fresh systems: a userland each, with a clean clone of what is committed.

    python3 tests/fresh/run.py [--only NAME] [--first-command-only] [--write-docs]

The first command runs on all of them. The second runs whole on Debian 12 and as `--unit --real` elsewhere. Rust is a copy of this
machine's rustup and toolchain, without the musl target and with automatic installs off; one system uses Ubuntu's own cargo.

Needs root, rustup, mmdebstrap, and the archives and registries from which the packages come: apt, pip, npm and cargo get them as on
this machine. Takes hours, and some 30 GB below ~/.cache/isopod/fresh. A system whose archive can't be reached is skipped. The last
line is `N passed, N failed, N skipped`, in commands.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from runner import page, userland  # noqa: E402
from runner.attempt import Attempt  # noqa: E402
from runner.outcome import FAILED, total  # noqa: E402
from runner.systems import SYSTEMS  # noqa: E402

LINES_SHOWN = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="systems whose name has this text")
    parser.add_argument("--first-command-only", action="store_true", help="leave the second command out")
    parser.add_argument("--write-docs", action="store_true", help="write the results into docs/full-tests.md")
    return parser.parse_args()


def main():
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args = arguments()
    if lacks := userland.missing():
        sys.exit(f"fresh systems can't be made here without {', '.join(lacks)}")
    commands = ["first"] if args.first_command_only else ["first", "second"]
    outcomes = []
    for system in chosen(args.only):
        attempt = Attempt(system, place(system), log_of(system))
        found = attempt.run(commands)
        print_outcomes(found, attempt)
        outcomes += found
        if args.write_docs:
            page.write(system, attempt.rust, attempt.commit, found, SYSTEMS)
    line, is_good = total(outcomes)
    print(line)
    sys.exit(0 if is_good else 1)


def chosen(only):
    return [system for system in SYSTEMS if not only or any(text in system.name for text in only)]


def place(system):
    return home() / f"{system.name}-{os.getpid()}"


def log_of(system):
    logs = home() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"{system.name}.log"


def home():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "isopod" / "fresh"


def print_outcomes(outcomes, attempt):
    for outcome in outcomes:
        print(f"{outcome.word:8}{outcome.system.name} {outcome.command} command ({outcome.seconds:.0f} s): {outcome.detail}", flush=True)
        if outcome.word == FAILED:
            lines = attempt.log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
            print("\n".join(f"    {line}" for line in [*lines, f"all of it: {attempt.log}"]), flush=True)


if __name__ == "__main__":
    main()
