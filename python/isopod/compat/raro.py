"""RARO's session manager: one sandbox per run, smart sync of a run's input, and artifacts in its output.

    from isopod.compat.raro import SandboxSession, WorkspaceManager, run_e2b_sandbox

    ws = WorkspaceManager("run-7", "/app/storage")
    print(run_e2b_sandbox("print(open('data.csv').read())", ws))
    SandboxSession.kill_session("run-7")

The server keeps the map from runs to sandboxes, so no Redis is needed here, two agents of a run never get two sandboxes,
and a sandbox that could not be removed is tried again. With ``REDIS_URL``, the server publishes the map under the same
keys, ``raro:e2b_session:{run_id}``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Optional, Union

from ..errors import ConfigurationError, IsopodError, QuotaExceededError, TransientError
from ..sessions import Execution, Session

__all__ = ["E2BSessionManager", "RFS_BASE", "SandboxSession", "WorkspaceManager", "run_e2b_sandbox"]

RFS_BASE = "/app/storage"
MAX_READ = 50_000
_logger = logging.getLogger("isopod.compat.raro")


class WorkspaceManager:
    """The directories of a run on this machine: ``{base}/sessions/{run_id}/input`` and ``…/output``.

    ``shared`` says that the server has the same directories (`isopod serve --run-files BASE`). Then nothing is copied
    between this machine and the server.
    """

    def __init__(self, run_id: str, base: Optional[str] = None, *, shared: bool = False) -> None:
        self.run_id = run_id
        self.shared = shared
        root = Path(base or os.environ.get("RFS_BASE") or RFS_BASE) / "sessions" / run_id
        self.input_dir = str(root / "input")
        self.output_dir = str(root / "output")
        for directory in (self.input_dir, self.output_dir):
            os.makedirs(directory, exist_ok=True)
        #: What the server already has: path -> (size, time, inode).
        self._sent: dict[str, tuple[int, int, int]] = {}

    def write(self, filename: str, content: Union[str, bytes]) -> str:
        """Writes a file of the output to the disk. Directories in the name stay."""
        path = _inside(self.output_dir, filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        part = path.with_name(f".{path.name}.part-{os.getpid()}")
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        return str(path)

    def read(self, filename: str) -> str:
        """The text of a file, of the output before the input. Long ones are cut."""
        for directory in (self.output_dir, self.input_dir):
            path = _inside(directory, filename)
            if path.is_file():
                text = path.read_text(errors="replace")
                return text if len(text) <= MAX_READ else text[:MAX_READ] + "\n...[TRUNCATED]..."
        return f"Error: File '{filename}' not found."

    def list_contents(self) -> str:
        return f"FILES:\nInputs: {_names(self.input_dir)}\nOutputs: {_names(self.output_dir)}"

    def upload(self, session: Session) -> int:
        """Sends new and changed inputs to the server. Returns how many."""
        sent = 0
        for name in [] if self.shared else _names(self.input_dir):
            path = Path(self.input_dir, name)
            status = path.stat()
            mark = (status.st_size, status.st_mtime_ns, status.st_ino)
            if self._sent.get(name) != mark:
                session.write_file(name, path.read_bytes())
                self._sent[name] = mark
                sent += 1
        return sent

    def download(self, session: Session, names: list[str]) -> dict[str, str]:
        """Gets what a call created. Returns the names that could not be had, with the reason."""
        failed: dict[str, str] = {}
        for name in [] if self.shared else names:
            try:
                self.write(name, session.read_file(name))
            except (IsopodError, OSError) as error:
                failed[name] = str(error)
        return failed


class E2BSessionManager:
    """Sessions by run id, on one server."""

    def __init__(self, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> None:
        self._options: dict[str, Any] = {"api_key": api_key, "api_url": api_url}

    def session(self, run_id: str) -> Session:
        return Session(run_id, **self._options)

    def get_or_create(self, run_id: str) -> Optional[Any]:
        """The run's sandbox as ``e2b_code_interpreter.Sandbox``, or None if there can't be one. The log says why."""
        try:
            return self.session(run_id).sandbox()
        except Exception as error:
            _logger.error("Failed to create E2B sandbox for run %s: %s", run_id, error)
            return None

    def execute(self, code: str, ws: WorkspaceManager, *, agent_id: Optional[str] = None) -> dict[str, Any]:
        """Sends the workspace's input, runs code, and puts what it created into the workspace's output."""
        try:
            session = self.session(ws.run_id)
            ws.upload(session)
            done = session.execute(code, agent_id=agent_id)
            missing = ws.download(session, done.files_generated)
        except (ConfigurationError, QuotaExceededError, TransientError) as error:
            _logger.error("E2B failure: %s", error)
            return {"success": False, "error": "Failed to initialize E2B Sandbox connection."}
        except IsopodError as error:
            _logger.error("E2B failure: %s", error)
            return {"success": False, "error": f"Sandbox failed: {error}"}
        return _shaped(done, missing)

    def kill_session(self, run_id: str) -> bool:
        """Removes the run's sandbox. False if there was none."""
        return self.session(run_id).cleanup()

    cleanup = kill_session


class SandboxSession:
    """The session manager with the settings of the environment."""

    @staticmethod
    def get_redis_key(run_id: str) -> str:
        """Where the server publishes the sandbox's id if it has a Redis."""
        return f"raro:e2b_session:{run_id}"

    @classmethod
    def get_or_create(cls, run_id: str) -> Optional[Any]:
        return E2BSessionManager().get_or_create(run_id)

    @classmethod
    def kill_session(cls, run_id: str) -> bool:
        return E2BSessionManager().kill_session(run_id)


def run_e2b_sandbox(code: str, ws: WorkspaceManager) -> dict[str, Any]:
    """RARO's ``_run_e2b_sandbox``: ``success`` with ``result`` and ``files_generated``, or ``error`` with ``logs``."""
    return E2BSessionManager().execute(code, ws)


_run_e2b_sandbox = run_e2b_sandbox


def _shaped(done: Execution, missing: dict[str, str]) -> dict[str, Any]:
    """The agent must learn what it can't find in its output."""
    told = "".join(f"\n[SYSTEM: '{name}' could not be saved: {reason}]" for name, reason in missing.items())
    files = [name for name in done.files_generated if name not in missing]
    if done.success:
        return {"success": True, "result": done.result + told, "files_generated": files}
    failed = {"success": False, "error": done.error, "logs": done.result + told}
    return failed | ({"files_generated": files} if files else {})


def _inside(directory: str, name: str) -> Path:
    path = Path(directory, name)
    if not path.resolve().is_relative_to(Path(directory).resolve()):
        raise ConfigurationError(f"{name!r} leads out of the run's files")
    return path


def _names(directory: str) -> list[str]:
    """All files below a directory, by their relative paths."""
    walked = ((Path(folder), names) for folder, _, names in os.walk(directory))
    paths = (folder / name for folder, names in walked for name in names)
    return sorted(str(path.relative_to(directory)) for path in paths if path.is_file() and not path.is_symlink())
