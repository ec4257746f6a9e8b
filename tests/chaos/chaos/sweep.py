"""Removes by force what a broken server left, so that a run with findings leaves the host clean.

Nothing here says that something was left: the check of residue has said so before.
"""

import os
import subprocess
import time
from pathlib import Path

from chaos.processes import Processes


def sweep(processes: Processes, tag: str, top: Path) -> None:
    """Removes everything with that tag, and everything mounted below that directory."""
    for one in processes.everything():
        one.kill()
    time.sleep(0.5)
    _unmount_below(top)
    if tag:
        _remove_cgroups(f"isopod-{tag}")
        for name in os.listdir("/sys/class/net"):
            if name.startswith(f"i{tag}-"):
                _run("ip", "link", "delete", name)
        for family in ("inet", "ip", "ip6", "netdev", "bridge"):
            _run("nft", "delete", "table", family, f"isopod-{tag}")
        _remove_claims(tag)


def _unmount_below(top: Path) -> None:
    fields = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [line[4] for line in fields if line[4].startswith(f"{top}/")]
    # In reverse order of mounting.
    for place in reversed(below):
        _run("umount", "--lazy", place)


def _remove_cgroups(name: str) -> None:
    roots = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines() if " cgroup" in line]
    for group in (root / name for root in roots):
        for directory, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                continue


def _remove_claims(tag: str) -> None:
    for claim in Path("/run/isopod/slots").glob("*"):
        if claim.is_symlink() and os.readlink(claim).startswith(f"{tag}/"):
            claim.unlink(missing_ok=True)
    for claim in Path("/run/isopod/tags").glob(tag):
        try:
            claim.rmdir()
        except OSError:
            continue


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True)
