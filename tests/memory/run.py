#!/usr/bin/env python3
"""Pauses, resumes, copies, rolls back and kills sandboxes in seeded rounds, with kills of the server between and during
the calls, and compares after each round what processes, files and databases in them have with what they must have.

    python3 tests/memory/run.py --isopod target/debug/isopod [--seed 1] [--rounds 40] [--write-docs]

Needs root, python3-venv and CRIU (`cargo xtask setup`, ISOPOD_CRIU). The same seed gives the same actions. With ISOPOD_FULL, there
are 500 rounds. The exit status is 0 if there was no difference and nothing was left on the host.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "sdk")]

from harness.packages import PYTHON_VERSIONS, python_of  # noqa: E402

ROUNDS, FULL_ROUNDS = 40, 500


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=FULL_ROUNDS if os.environ.get("ISOPOD_FULL") else ROUNDS)
    parser.add_argument("--write-docs", action="store_true", help="record the result in docs/snapshots.md")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the memory suite makes real sandboxes and must run as root")
    if not os.environ.get("ISOPOD_CRIU"):
        print("not tested: there is no CRIU; hint: run `cargo xtask setup`, and set ISOPOD_CRIU to what it builds")
        sys.exit(1 if os.environ.get("CI") else 0)
    python = python_of(PYTHON_VERSIONS[0])
    words = ["--isopod", str(args.isopod.resolve()), "--seed", str(args.seed), "--rounds", str(args.rounds)]
    words += ["--write-docs"] if args.write_docs else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[:2]), "PYTHONUNBUFFERED": "1"}
    os.execve(python, [str(python), str(HERE / "rounds.py"), *words], environment)


if __name__ == "__main__":
    main()
