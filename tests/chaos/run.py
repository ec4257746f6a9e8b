#!/usr/bin/env python3
"""Kills and cuts every part of a running Isopod while clients use it, and checks that nothing acknowledged is lost.

    python3 tests/chaos/run.py --isopod target/debug/isopod --seed 1 --minutes 2 [--faults server,guest] [--write-docs]

Needs root, python3-venv, e2fsprogs, nftables and PostgreSQL. The same seed gives the same schedule of faults. Every violation is printed
with the seed, the step, what was expected and what was found. The exit status is 0 when there was none.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "sdk")]

from harness.packages import python_of  # noqa: E402

SDK_VERSION = "2.11.5"


def main() -> None:
    """Starts the suite in the environment with the official SDK."""
    if os.geteuid() != 0:
        sys.exit("the chaos suite makes real sandboxes and must run as root")
    python = python_of(SDK_VERSION, "e2b-code-interpreter")
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "sdk")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    os.execve(python, [str(python), "-m", "chaos", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
