#!/usr/bin/env python3
"""Tests the Python package against an `isopod serve` of its own.

    sudo python3 python/tests/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, redis-server, Python 3.11 or newer, and pip for the first run: the packages are kept in ~/.cache/isopod/sdk.
The seeds' own code runs if ISOPOD_SEEDS names the directory of their texts, or if it is ../shared/seeds; otherwise its tests
are skipped, and fail if CI is set. The line `N passed, N failed, N skipped` counts them, and those before it say why.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "sdk"))

from harness.packages import _once, cache_root  # noqa: E402

PACKAGES = [
    "e2b-code-interpreter==2.11.5",
    "e2b==2.63.0",
    "httpx==0.28.1",
    "pandas==3.1.1",
    "pyarrow==26.0.1",
    # What the seeds' own code imports.
    "fastapi==0.162.7",
    "pydantic==2.14.3",
    "redis==8.1.0",
    "uvicorn==0.54.0",
    # What the tests themselves use.
    "mypy==2.4.1",
    "pandas-stubs==3.1.0.261029",
    "pytest==9.2.0",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="tests whose name has this text, and all other such texts")
    options = parser.parse_args()
    command = [str(environment()), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE)]
    if options.only:
        command += ["-k", " and ".join(options.only)]
    variables = os.environ | {"ISOPOD_PROGRAM": str(options.isopod.resolve())}
    tests = subprocess.Popen(command, cwd=HERE.parent, env=variables, stdin=subprocess.DEVNULL)
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: tests.send_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(tests.wait())


def environment():
    """The interpreter of an environment with all packages, created once."""
    home = cache_root() / f"package-{hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:12]}"

    def install():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)

    _once(home, install)
    return home / "bin" / "python"


if __name__ == "__main__":
    main()
