"""Runs the Python cases with the SDK of the interpreter that runs this: `main.py sync|async [--core] [--only TEXT]`."""

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
warnings.simplefilter("ignore")

import cases_commands  # noqa: F401, E402
import cases_files  # noqa: F401, E402
import cases_git  # noqa: F401, E402
import cases_lifecycle  # noqa: F401, E402
import cases_list  # noqa: F401, E402
import cases_missing  # noqa: F401, E402
import cases_network  # noqa: F401, E402
import cases_pause  # noqa: F401, E402
import cases_pty  # noqa: F401, E402
import cases_urls  # noqa: F401, E402
import cases_watch  # noqa: F401, E402
from kit import Flavour  # noqa: E402

from harness.cases import run_all  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("flavour", choices=["sync", "async"])
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--workers", type=int, default=6)
    args = parser.parse_args()
    good = run_all(Flavour(args.flavour), args.core, args.only, args.workers)
    sys.exit(0 if good else 1)


main()
