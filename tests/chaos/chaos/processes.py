"""The processes of one state directory, by role. Nothing else on the host is ever looked at twice.

A process is ours if it is in a cgroup of the state directory's tag, if it writes to the spawner's log, or if its arguments name
the state directory's storage. Sandboxes are told apart by their records.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    # From /proc/PID/stat: with the pid, it identifies this process and no later one.
    start_time: str
    # The sandbox in which it runs. None for a pooled one.
    sandbox: str | None = None
    execution: str | None = None

    def kill(self) -> bool:
        """Kills exactly this process. False if it is already gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if _start_time(self.pid) != self.start_time:
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return True
        except OSError:
            return False
        finally:
            os.close(handle)


class Processes:
    def __init__(self, state: Path) -> None:
        self.state = state

    def supervisor(self) -> list[Process]:
        return [one for one in self._storage() if not self._is_worker(one.pid)]

    def worker(self) -> list[Process]:
        return [one for one in self._storage() if self._is_worker(one.pid)]

    def spawner(self) -> list[Process]:
        """Its errors go to a file of the state directory. So do those of launchers, which are in our cgroups."""
        log = _identity(str(self.state / "homes/serve/spawner.log"))
        launchers = {one.pid for one, _ in self._in_cgroups()}
        return [
            one
            for one in _all()
            if one.pid not in launchers
            and "__spawner" in _words(one.pid)
            and log is not None
            and _identity(f"/proc/{one.pid}/fd/2") == log
        ]

    def launcher(self) -> list[Process]:
        """Forked from the spawner, and still a launcher."""
        return [one for one, _ in self._in_cgroups() if "__spawner" in _words(one.pid)]

    def zygote(self) -> list[Process]:
        """Without a sandbox, and the first process of its record."""
        found = self._first_processes()
        return [one for one in found if one.sandbox is None and "zygote" in _words(one.pid)]

    def guest(self) -> list[Process]:
        """The first processes of sandboxes, including pooled ones."""
        return [one for one in self._first_processes() if "isopod-guest" in _words(one.pid)[0]]

    def kernel(self) -> list[Process]:
        """Python processes of the interpreter in sandboxes."""
        owners = {record["execution"]: record for record in self.records()}
        first = {one.pid for one in self._first_processes()}
        found = []
        for one, execution in self._in_cgroups():
            record = owners.get(execution)
            if record and one.pid not in first and any(word.endswith("driver/run.py") for word in _words(one.pid)):
                found.append(Process(one.pid, one.start_time, (record.get("spec") or {}).get("sandbox"), execution))
        return found

    def records(self) -> list[dict]:
        found = []
        for path in sorted((self.state / "homes").glob("*/boxes/*/record.json")):
            try:
                found.append(json.loads(path.read_text()))
            except (OSError, ValueError):
                continue
        return found

    def sandbox_of(self, process: Process) -> str | None:
        """The sandbox that its execution belongs to by now, if any."""
        for record in self.records():
            if record["execution"] == process.execution and record.get("spec"):
                return record["spec"]["sandbox"]
        return None

    def everything(self) -> list[Process]:
        """All of the above and everything else in our cgroups."""
        found = {one.pid: one for one in [*self._storage(), *self.spawner()]}
        found |= {one.pid: one for one, _ in self._in_cgroups()}
        return list(found.values())

    def describe(self, process: Process) -> str:
        return f"{process.pid}: {' '.join(_words(process.pid))}"

    def _first_processes(self) -> list[Process]:
        found = []
        for record in self.records():
            init = record.get("init")
            if init and _start_time(init["pid"]) == str(init["start_time"]):
                sandbox = (record.get("spec") or {}).get("sandbox")
                found.append(Process(init["pid"], str(init["start_time"]), sandbox, record["execution"]))
        return found

    def _storage(self) -> list[Process]:
        directory = str(self.state / "storage")
        return [one for one in _all() if "__storaged" in (words := _words(one.pid)) and directory in words]

    @staticmethod
    def _is_worker(pid: int) -> bool:
        return "--worker" in _words(pid)

    def _in_cgroups(self) -> Iterator[tuple[Process, str]]:
        try:
            group = f"/isopod-{(self.state / 'tag').read_text().strip()}/"
        except OSError:
            return
        for one in _all():
            for line in _text(one.pid, "cgroup").splitlines():
                path = line.split(":", 2)[2] + "/"
                if group in path:
                    yield one, path.split(group, 1)[1].split("/", 1)[0]
                    break


def _all() -> Iterator[Process]:
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        started = _start_time(int(name))
        if started is not None:
            yield Process(int(name), started)


def _start_time(pid: int) -> str | None:
    """Field 22 of stat. None for a process that is gone or a zombie."""
    fields = _text(pid, "stat").rpartition(")")[2].split()
    return fields[19] if fields and fields[0] not in ("Z", "X") else None


def _words(pid: int) -> list[str]:
    return _text(pid, "cmdline").split("\0")


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
        return found.st_dev, found.st_ino
    except OSError:
        return None
