#!/usr/bin/env python3
"""Boots virtual machines with a distribution, its own kernel, systemd and Isopod's Debian package, and uses sandboxes in them. With
ISOPOD_FULL, it takes all distributions and reboots each machine twice: once with `systemctl poweroff`, once by a power cut.
Paused sandboxes, snapshots and what runs in them must go on.

    python3 tests/machine/run.py --isopod target/debug/isopod [--only debian-13] [--write-docs]

Needs root, QEMU (`qemu-system-x86`), mmdebstrap, python3-venv, and what `cargo xtask dist deb` needs. It emulates the processor,
so it needs no KVM. A machine boots in about a minute, and its reboots take five. Disks without Isopod are kept below the cache
directory.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(HERE), str(TESTS / "fresh"), str(TESTS / "memory"), str(TESTS / "sdk")]

from harness.packages import PYTHON_VERSIONS, python_of  # noqa: E402

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="systems whose name has this text")
    parser.add_argument("--write-docs", action="store_true", help="record full results in docs/full-tests.md")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the machine suite makes a root file system and must run as root")
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        sys.exit(f"not tested: packages are missing; hint: apt-get install {' '.join(missing)}")
    python = python_of(PYTHON_VERSIONS[0])
    words = ["--isopod", str(args.isopod.resolve())] + (["--write-docs"] if args.write_docs else [])
    words += [word for text in args.only for word in ("--only", text)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[:4]), "PYTHONUNBUFFERED": "1"}
    os.execve(python, [str(python), str(HERE / "story.py"), *words], environment)


if __name__ == "__main__":
    main()
