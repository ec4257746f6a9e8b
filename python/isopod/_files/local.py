"""The files of an execution in a directory of this machine: inside a sandbox, or on a host that has the workspace mounted.

The rules are the server's: atomic writes, metadata beside the file, no key that leads out.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, ParamSpec, TypeVar
from uuid import uuid4

from .._http import Request, Steps
from ..errors import ConfigurationError
from . import FileEntry
from .keys import SUBDIRS, below, normalize_key

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NOTES = ".metadata"


def _at_once(function: Callable[_P, _T]) -> Callable[_P, Steps[_T]]:
    """An operation that needs no request."""

    @wraps(function)
    def steps(*arguments: _P.args, **named: _P.kwargs) -> Steps[_T]:
        nothing: tuple[Request, ...] = ()
        for request in nothing:
            yield request
        return function(*arguments, **named)

    return steps


class LocalFiles:
    """Files below ``root``. With ``flat``, it has only the directories that keys name."""

    def __init__(self, execution_id: str, root: Path, buffer_size: int, flat: bool = False) -> None:
        self._execution_id = execution_id
        self._buffer_size = buffer_size
        self._flat = flat
        self.root = root
        for directory in [""] if flat else SUBDIRS.values():
            (root / directory).mkdir(parents=True, exist_ok=True)

    @_at_once
    def put(self, key: str, data: bytes, metadata: Optional[Mapping[str, Any]]) -> str:
        path = self._new(key)
        notes = _notes_of(path)
        if metadata:
            _write(notes, json.dumps(dict(metadata)).encode())
        else:
            notes.unlink(missing_ok=True)
        _write(path, data)
        return str(path)

    @_at_once
    def get(self, key: str) -> Optional[bytes]:
        path = self._existing(key)
        return None if path is None else path.read_bytes()

    @_at_once
    def size(self, key: str) -> Optional[int]:
        path = self._existing(key)
        return None if path is None else path.stat().st_size

    @_at_once
    def metadata(self, key: str) -> Optional[dict[str, Any]]:
        path = self._existing(key)
        if path is None or not _notes_of(path).is_file():
            return None
        return dict(json.loads(_notes_of(path).read_bytes()))

    @_at_once
    def delete(self, key: str) -> bool:
        path = self._existing(key)
        if path is None:
            return False
        path.unlink()
        _notes_of(path).unlink(missing_ok=True)
        return True

    @_at_once
    def entries(self, prefix: str, modified_since: Optional[datetime]) -> list[FileEntry]:
        wanted = self._prefix(prefix)
        found = [self._entry(path) for path in self._all()]
        since = modified_since.timestamp() if modified_since else None
        kept = (one for one in found if one.key.startswith(wanted))
        return sorted((one for one in kept if since is None or one.modified_at.timestamp() >= since), key=_by_key)

    @_at_once
    def copy(self, source: str, target: str) -> str:
        return str(self._duplicate(source, target))

    @_at_once
    def move(self, source: str, target: str) -> str:
        old, new = self._required(source), self._new(target)
        if _notes_of(old).is_file():
            _notes_of(old).replace(_notes_of(new))
        old.replace(new)
        return str(new)

    @_at_once
    def cleanup(self, older_than_hours: float) -> int:
        limit = time.time() - older_than_hours * 3600
        old = [path for path in _files_below(self.root / "temp") if path.stat().st_mtime <= limit]
        for path in old:
            path.unlink()
        for folder, _, _ in os.walk(self.root / "temp", topdown=False):
            if folder != str(self.root / "temp") and not os.listdir(folder):
                os.rmdir(folder)
        return sum(1 for path in old if not path.name.endswith(_NOTES))

    @_at_once
    def info(self) -> dict[str, Any]:
        # Metadata counts, as on the server.
        sizes = [path.stat().st_size for path in _files_below(self.root)]
        places = {name: below(directory, "", self._flat) for name, directory in SUBDIRS.items()}
        paths = {f"{name}_path": str(self.root / place) for name, place in places.items()}
        return {
            "execution_id": self._execution_id,
            "root_path": str(self.root),
            "total_size_bytes": sum(sizes),
            "total_size_mb": round(sum(sizes) / (1024 * 1024), 2),
            "file_count": len(sizes),
            **paths,
        }

    def _duplicate(self, source: str, target: str) -> Path:
        old, new = self._required(source), self._new(target)
        part = _part_of(new)
        try:
            with open(old, "rb") as reader, open(part, "wb") as writer:
                shutil.copyfileobj(reader, writer, self._buffer_size)
            if _notes_of(old).is_file():
                _write(_notes_of(new), _notes_of(old).read_bytes())
            part.replace(new)
        finally:
            part.unlink(missing_ok=True)
        return new

    def _new(self, key: str) -> Path:
        path = self._path(key)
        if path.name.endswith(_NOTES):
            raise ConfigurationError(f"{key}: keys that end in {_NOTES} hold the metadata of other files")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _existing(self, key: str) -> Optional[Path]:
        path = self._path(key)
        return path if path.is_file() else None

    def _required(self, key: str) -> Path:
        path = self._existing(key)
        if path is None:
            raise FileNotFoundError(f"there is nothing at {normalize_key(key, self._flat)!r}")
        return path

    def _path(self, key: str) -> Path:
        """Refuses links that lead out, which other programs may have made."""
        path = self.root / normalize_key(key, self._flat)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise ConfigurationError(f"{key!r} leads out of {self.root}")
        return path

    def _prefix(self, prefix: str) -> str:
        if not prefix.strip("/"):
            return ""
        return normalize_key(prefix, self._flat) + ("/" if prefix.endswith("/") else "")

    def _all(self) -> list[Path]:
        return [path for path in _files_below(self.root) if not path.name.endswith(_NOTES)]

    def _entry(self, path: Path) -> FileEntry:
        status = path.stat()
        time = datetime.fromtimestamp(status.st_mtime, timezone.utc)
        return FileEntry(path.relative_to(self.root).as_posix(), status.st_size, time)


def _by_key(entry: FileEntry) -> str:
    return entry.key


def _files_below(root: Path) -> list[Path]:
    walked = ((Path(folder), names) for folder, _, names in os.walk(root))
    paths = (folder / name for folder, names in walked for name in names)
    return [path for path in paths if path.is_file() and not path.is_symlink() and ".part-" not in path.name]


def _notes_of(path: Path) -> Path:
    return path.with_name(path.name + _NOTES)


def _part_of(path: Path) -> Path:
    """A name of its own for each writer, so that two at once don't mix."""
    return path.with_name(f".{path.name[:200]}.part-{uuid4().hex}")


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    part = _part_of(path)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
