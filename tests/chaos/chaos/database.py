"""The server's database, and how to cut it off: PostgreSQL behind a proxy, or SQLite with its write lock taken."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

from chaos.bucket import free_port, wait_for_port
from chaos.proxy import Mode, Proxy

_END_REASON = "SELECT end_reason FROM sandboxes WHERE id = {} AND end_reason IS NOT NULL"


class Database(Protocol):
    def open(self) -> None: ...
    def options(self) -> list[str]: ...
    def cut(self, choice: float) -> None: ...
    def restore(self) -> None: ...
    def end_reason(self, sandbox_id: str) -> str | None: ...
    def close(self) -> None: ...


class Sqlite:
    """The file in the state directory."""

    def __init__(self, state: Path) -> None:
        self._file = state / "isopod.db"
        self._holder: sqlite3.Connection | None = None

    def open(self) -> None:
        pass

    def options(self) -> list[str]:
        return []

    def cut(self, choice: float) -> None:
        self._holder = sqlite3.connect(self._file, timeout=10, isolation_level=None, check_same_thread=False)
        self._holder.execute("BEGIN IMMEDIATE")

    def restore(self) -> None:
        if self._holder is not None:
            with contextlib.suppress(sqlite3.Error):
                self._holder.execute("ROLLBACK")
            self._holder.close()
            self._holder = None

    def end_reason(self, sandbox_id: str) -> str | None:
        with contextlib.closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=10)) as reader:
            row = reader.execute(_END_REASON.format("?"), [sandbox_id]).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        self.restore()


class Postgres:
    """Our own server. PostgreSQL refuses to run as root, so it runs as its package's user."""

    def open(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="isopod-chaos-pg-"))
        shutil.chown(self._home, "postgres", "postgres")
        self._port = free_port()
        data = str(self._home / "data")
        choices = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]
        subprocess.run([*_as_postgres("initdb"), "-D", data, *choices], check=True, capture_output=True)
        settings = ["listen_addresses=127.0.0.1", f"port={self._port}", f"unix_socket_directories={self._home}", "fsync=off"]
        command = [*_as_postgres("postgres"), "-D", data, *[word for setting in settings for word in ("-c", setting)]]
        log = open(self._home / "log", "wb")
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for_port(self._port, 60)
        self._reach = ["-h", "127.0.0.1", "-p", str(self._port), "-U", "postgres"]
        for _ in range(100):
            if subprocess.run([_program("createdb"), *self._reach, "chaos"], capture_output=True).returncode == 0:
                break
        self.proxy = Proxy(("127.0.0.1", self._port))

    def options(self) -> list[str]:
        return ["--database", f"postgres://postgres@127.0.0.1:{self.proxy.port}/chaos"]

    def cut(self, choice: float) -> None:
        self.proxy.cut(Mode.REFUSE if choice < 0.5 else Mode.HANG)

    def restore(self) -> None:
        self.proxy.restore()

    def end_reason(self, sandbox_id: str) -> str | None:
        command = [_program("psql"), *self._reach, "-d", "chaos", "-Atc", _END_REASON.format(f"'{sandbox_id}'")]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() or None

    def close(self) -> None:
        self.proxy.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


def _as_postgres(program: str) -> list[str]:
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", _program(program)]


def _program(name: str) -> str:
    """Debian does not put the server's programs into the path."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, homes), os.environ.get("PATH", "")]))
    if found is None:
        raise RuntimeError(f"{name} is missing: apt-get install postgresql")
    return found
