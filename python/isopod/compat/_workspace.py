"""RARO's workspace: the input and output directories of a run on this machine, and what of them the server has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional, Union
from uuid import uuid4

from .._http import Steps
from ..errors import ConfigurationError, IsopodError
from ..sessions import AsyncSession, Session, _Session

RFS_BASE = "/app/storage"
MAX_READ = 50_000


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
        # A name of its own for each writer, so that agents which write at once don't mix their files.
        part = path.with_name(f".{path.name[:200]}.part-{uuid4().hex}")
        try:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return str(path)

    def read(self, filename: str) -> str:
        """The text of a file, of the output before the input. Long ones are cut."""
        path = self.find(filename)
        if path is None:
            return f"Error: File '{filename}' not found."
        text = path.read_text(errors="replace")
        return text if len(text) <= MAX_READ else text[:MAX_READ] + "\n...[TRUNCATED]..."

    def find(self, filename: str) -> Optional[Path]:
        """Where a file is: in the output, or else in the input. None if it is in neither."""
        paths = [_inside(directory, filename) for directory in (self.output_dir, self.input_dir)]
        return next((path for path in paths if path.is_file()), None)

    def list_contents(self) -> str:
        return f"FILES:\nInputs: {_names(self.input_dir)}\nOutputs: {_names(self.output_dir)}"

    def upload(self, session: Session) -> int:
        """Sends new and changed inputs to the server. Returns how many."""
        return session._client.run(self.send(session))

    async def aupload(self, session: AsyncSession) -> int:
        return await session._client.arun(self.send(session))

    def download(self, session: Session, names: list[str]) -> dict[str, str]:
        """Gets what a call created. Returns the names that could not be had, with the reason."""
        return session._client.run(self.fetch(session, names))

    async def adownload(self, session: AsyncSession, names: list[str]) -> dict[str, str]:
        return await session._client.arun(self.fetch(session, names))

    def send(self, session: _Session) -> Steps[int]:
        """The requests of ``upload``."""
        sent = 0
        for name in [] if self.shared else _names(self.input_dir):
            path = Path(self.input_dir, name)
            status = path.stat()
            mark = (status.st_size, status.st_mtime_ns, status.st_ino)
            if self._sent.get(name) != mark:
                yield from session._write(name, path.read_bytes())
                self._sent[name] = mark
                sent += 1
        return sent

    def fetch(self, session: _Session, names: list[str]) -> Steps[dict[str, str]]:
        """The requests of ``download``."""
        failed: dict[str, str] = {}
        for name in [] if self.shared else names:
            try:
                self.write(name, (yield from session._read(name)))
            except (IsopodError, OSError) as error:
                failed[name] = str(error)
        return failed


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
