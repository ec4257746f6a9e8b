"""Nothing is left at the end: no process, mount, cgroup, interface, rule, loop device, slot or file."""

import os
import subprocess
from pathlib import Path

from harness.paths import names

from chaos.checks.eventually import eventually
from chaos.context import Context
from chaos.ledger import Life

# The kernel removes network namespaces and killed processes a moment later.
DEADLINE = 20.0


def check_ended_sandboxes(context: Context) -> None:
    """While the server runs: nothing is left of ended sandboxes."""
    if context.ledger.of_life(Life.ENDING):
        return
    if not eventually(DEADLINE, lambda: not _owned(context), 0.2):
        context.violations.add("residue", "no record speaks of a sandbox after all were ended", f"{_owned(context)}")


def remove(context: Context, tag: str) -> None:
    """Stops the server, uninstalls, and checks everything."""
    platform = context.platform
    for problem in platform.server.terminate():
        context.violations.add("residue", "SIGTERM ends the server with 0", problem)
    failed = platform.server.run("uninstall", "--yes")
    if failed:
        context.violations.add("residue", "uninstall removes everything", failed)
    if not eventually(DEADLINE, lambda: not _look(context, tag), 0.2):
        for found in _look(context, tag):
            context.violations.add("residue", "nothing is left on the host", found)


def _owned(context: Context) -> list[str]:
    return [record["spec"]["sandbox"] for record in context.platform.processes.records() if record.get("spec")]


def _look(context: Context, tag: str) -> list[str]:
    state = context.platform.state
    found = [f"process {pid}" for pid in _processes(state, tag)]
    found += [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if names(line, state)]
    found += [f"loop device {device.name}" for device in Path("/sys/block").glob("loop*") if names(_backing_file(device), state)]
    if tag:
        found += [f"cgroup {path}" for path in _cgroups(tag)]
        found += [f"interface {name}" for name in os.listdir("/sys/class/net") if name.startswith(f"i{tag}-")]
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout.split()
        found += [f"rules {name}" for name in tables if name == f"isopod-{tag}"]
        found += [f"slot {path}" for path in Path("/run/isopod/slots").glob("*") if _claimed_by(path, tag)]
        found += [f"claim {path}" for path in Path("/run/isopod/tags").glob(tag)]
    if state.exists():
        found += [f"file {path}" for path in sorted(state.iterdir())]
    return found


def _processes(state: Path, tag: str) -> list[str]:
    """Processes that name the state directory or are in one of its cgroups."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_text(errors="replace").replace("\0", " ")
            groups = Path(f"/proc/{name}/cgroup").read_text()
        except OSError:
            continue
        if names(words, state) or (tag and any(f"/isopod-{tag}/" in f"{line}/" for line in groups.splitlines())):
            found.append(f"{name}: {words[:200]}")
    return found


def _backing_file(device: Path) -> str:
    try:
        return (device / "loop/backing_file").read_text()
    except OSError:
        return ""


def _cgroups(tag: str) -> list[Path]:
    roots = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines() if " cgroup" in line]
    return [root / f"isopod-{tag}" for root in roots if (root / f"isopod-{tag}").is_dir()]


def _claimed_by(path: Path, tag: str) -> bool:
    try:
        return os.readlink(path).startswith(f"{tag}/")
    except OSError:
        return False
