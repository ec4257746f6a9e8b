"""The files of an execution: how keys become paths, and the two places where the files can be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Mapping, Optional, Protocol

from .._http import Steps


@dataclass(frozen=True)
class FileEntry:
    """A file in a list."""

    key: str
    size: int
    modified_at: datetime


class Files(Protocol):
    """Where the files of one execution are. Missing files are None or False, never an error."""

    root: Path

    def put(self, key: str, data: bytes, metadata: Optional[Mapping[str, Any]]) -> Steps[str]: ...

    def get(self, key: str) -> Steps[Optional[bytes]]: ...

    def size(self, key: str) -> Steps[Optional[int]]: ...

    def metadata(self, key: str) -> Steps[Optional[dict[str, Any]]]: ...

    def delete(self, key: str) -> Steps[bool]: ...

    def entries(self, prefix: str, modified_since: Optional[datetime]) -> Steps[list[FileEntry]]: ...

    def copy(self, source: str, target: str) -> Steps[str]: ...

    def move(self, source: str, target: str) -> Steps[str]: ...

    def cleanup(self, older_than_hours: float) -> Steps[int]: ...

    def info(self) -> Steps[dict[str, Any]]: ...
