"""Files of an execution, which programs on the host and code in sandboxes see at the same path.

    storage = FileStorage(execution_id="run-7")
    await storage.put("test.txt", b"Hello from host!")
    print(storage.get_artifacts_path("test.txt"))  # /opt/sentient/executions/run-7/artifacts/test.txt

``FileStorage`` has the names of ROMA's class. ``SyncFileStorage`` has the same methods for programs without an event
loop. The files are on the server; with ``flat_structure`` or ``backend="local"``, they are in a directory of this machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Mapping, Optional, TypeVar, Union

from ._files import FileEntry, Files
from ._files.keys import SUBDIRS, below, check_execution_id, generate_key, normalize_key
from ._files.local import LocalFiles
from ._files.server import ServerFiles
from ._http import Client, Steps
from .errors import ConfigurationError, FileTooLargeError

__all__ = ["FileEntry", "FileStorage", "StorageConfig", "SyncFileStorage"]

_logger = logging.getLogger("isopod.storage")

T = TypeVar("T")
AnyPath = Union[str, "os.PathLike[str]"]

#: The execution whose storage was opened last in this thread or task. A toolkit without one uses it.
current_execution: ContextVar[Optional[str]] = ContextVar("isopod_execution", default=None)


@dataclass
class StorageConfig:
    """Where files go, and how large they may be. An object with the same attributes, such as ROMA's, works too."""

    #: The workspace's path. The server's own, if None; another one than the server's is an error.
    base_path: Optional[str] = None
    max_file_size: int = 100 * 1024 * 1024
    buffer_size: int = 1024 * 1024
    #: ``base_path`` is the directory of all files, without an execution's directories. No server is called.
    flat_structure: bool = False
    #: ``server``, or ``local`` for ``base_path/executions/ID`` on this machine.
    backend: str = "server"


class _Storage:
    """What both classes share: where the files are, keys and paths."""

    ARTIFACTS_SUBDIR = SUBDIRS["artifacts"]
    TEMP_SUBDIR = SUBDIRS["temp"]
    RESULTS_SUBDIR = SUBDIRS["results"]
    PLOTS_SUBDIR = SUBDIRS["plots"]
    REPORTS_SUBDIR = SUBDIRS["reports"]
    OUTPUTS_SUBDIR = SUBDIRS["outputs"]
    LOGS_SUBDIR = SUBDIRS["logs"]

    def __init__(
        self,
        config: Optional[Any] = None,
        execution_id: str = "",
        *,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
    ) -> None:
        self.config = _as_config(config)
        self.execution_id = check_execution_id(execution_id)
        self._client: Optional[Client] = None
        self._files: Files
        self._flat = self.config.flat_structure
        self.max_file_size = self.config.max_file_size
        self.buffer_size = self.config.buffer_size
        if self._flat or self.config.backend == "local":
            root = _local_root(self.config, execution_id)
            self._files = LocalFiles(self.execution_id, root, self.buffer_size, self._flat)
        else:
            self._client = Client.resolve(api_key, api_url)
            self._files = _on_server(self._client, self.config, self.execution_id)
        current_execution.set(self.execution_id)

    @property
    def root(self) -> Path:
        """The directory with all files of the execution."""
        return self._files.root

    @property
    def base_path(self) -> Path:
        """The path of the workspace: ``root`` is ``executions/ID`` below it, or the same with ``flat_structure``."""
        return self.root if self._flat else self.root.parents[1]

    def get_full_path(self, key: str) -> Path:
        return self.root / self.normalize_key(key)

    def get_artifacts_path(self, key: str = "") -> Path:
        return self._below("artifacts", key)

    def get_temp_path(self, key: str = "") -> Path:
        return self._below("temp", key)

    def get_results_path(self, key: str = "") -> Path:
        return self._below("results", key)

    def get_plots_path(self, key: str = "") -> Path:
        return self._below("plots", key)

    def get_reports_path(self, key: str = "") -> Path:
        return self._below("reports", key)

    def get_outputs_path(self, key: str = "") -> Path:
        return self._below("outputs", key)

    def get_logs_path(self, key: str = "") -> Path:
        return self._below("logs", key)

    def normalize_key(self, key: str) -> str:
        """The key under which a file is stored. A key outside of the execution's directories is an artifact."""
        return normalize_key(key, self._flat)

    def generate_key(self, prefix: str = "", suffix: str = "") -> str:
        """A key that no other call returns: ``{prefix}_{time}_{8 hex}{suffix}``."""
        return generate_key(prefix, suffix, self._flat)

    def _below(self, name: str, key: str) -> Path:
        return self.root / below(SUBDIRS[name], key, self._flat)

    def _checked(self, key: str, data: bytes) -> bytes:
        if len(data) > self.max_file_size:
            raise FileTooLargeError(f"{key} has {len(data)} bytes, and max_file_size is {self.max_file_size}")
        return data


class FileStorage(_Storage):
    """The files of one execution, with awaited calls. The constructor makes one short request."""

    async def put(self, key: str, data: bytes, metadata: Optional[Mapping[str, Any]] = None) -> str:
        """Writes a file, whole or not at all. Returns its path."""
        return await self._run(self._files.put(key, self._checked(key, data), metadata))

    async def get(self, key: str) -> Optional[bytes]:
        """The contents, or None if there is no such file."""
        return await self._run(self._files.get(key))

    async def put_text(
        self, key: str, text: str, encoding: str = "utf-8", metadata: Optional[Mapping[str, Any]] = None
    ) -> str:
        return await self.put(key, text.encode(encoding), metadata)

    async def get_text(self, key: str, encoding: str = "utf-8") -> Optional[str]:
        """The text, or None if there is no such file or it isn't text. In the second case, the log says so."""
        return _from_text(key, await self.get(key), encoding)

    async def put_json(self, key: str, obj: Any, metadata: Optional[Mapping[str, Any]] = None) -> str:
        return await self.put(key, _to_json(obj), metadata)

    async def get_json(self, key: str) -> Optional[Any]:
        """The value, or None if there is no such file or it isn't JSON. In the second case, the log says so."""
        return _from_json(key, await self.get(key))

    async def get_metadata(self, key: str) -> Optional[dict[str, Any]]:
        return await self._run(self._files.metadata(key))

    async def exists(self, key: str) -> bool:
        return await self.get_size(key) is not None

    async def get_size(self, key: str) -> Optional[int]:
        return await self._run(self._files.size(key))

    async def delete(self, key: str) -> bool:
        """Removes a file and its metadata. False if there was none."""
        return await self._run(self._files.delete(key))

    async def list_keys(self, prefix: str = "") -> list[str]:
        """The keys with this prefix, sorted."""
        return [entry.key for entry in await self.list_files(prefix)]

    async def list_files(self, prefix: str = "", modified_since: Optional[datetime] = None) -> list[FileEntry]:
        """The files with this prefix, and only those written since then: what a task created."""
        return await self._run(self._files.entries(prefix, modified_since))

    async def copy(self, source_key: str, key: str) -> str:
        return await self._run(self._files.copy(source_key, key))

    async def move(self, source_key: str, key: str) -> str:
        return await self._run(self._files.move(source_key, key))

    async def copy_local(self, source_path: AnyPath, key: str) -> str:
        """Stores a copy of a file of this machine. Returns its path in the storage."""
        return await self.put(key, await asyncio.to_thread(Path(source_path).read_bytes))

    async def move_local(self, source_path: AnyPath, key: str) -> str:
        """Stores a file of this machine, and removes it here once it is stored."""
        stored = await self.copy_local(source_path, key)
        await asyncio.to_thread(Path(source_path).unlink)
        return stored

    async def cleanup_temp_files(self, older_than_hours: float = 24) -> int:
        """Removes temporary files of that age. Returns how many."""
        return await self._run(self._files.cleanup(older_than_hours))

    async def cleanup_execution_temp_files(self) -> int:
        """Removes all temporary files. Returns how many."""
        return await self.cleanup_temp_files(0)

    async def get_storage_info(self) -> dict[str, Any]:
        """``total_size_bytes``, ``total_size_mb``, ``file_count``, ``root_path`` and the other paths."""
        return await self._run(self._files.info())

    async def _run(self, steps: Steps[T]) -> T:
        if self._client is None:
            return await asyncio.to_thread(_finish, steps)
        return await self._client.arun(steps)


class SyncFileStorage(_Storage):
    """The files of one execution, with blocking calls. See ``FileStorage``."""

    def put(self, key: str, data: bytes, metadata: Optional[Mapping[str, Any]] = None) -> str:
        return self._run(self._files.put(key, self._checked(key, data), metadata))

    def get(self, key: str) -> Optional[bytes]:
        return self._run(self._files.get(key))

    def put_text(
        self, key: str, text: str, encoding: str = "utf-8", metadata: Optional[Mapping[str, Any]] = None
    ) -> str:
        return self.put(key, text.encode(encoding), metadata)

    def get_text(self, key: str, encoding: str = "utf-8") -> Optional[str]:
        return _from_text(key, self.get(key), encoding)

    def put_json(self, key: str, obj: Any, metadata: Optional[Mapping[str, Any]] = None) -> str:
        return self.put(key, _to_json(obj), metadata)

    def get_json(self, key: str) -> Optional[Any]:
        return _from_json(key, self.get(key))

    def get_metadata(self, key: str) -> Optional[dict[str, Any]]:
        return self._run(self._files.metadata(key))

    def exists(self, key: str) -> bool:
        return self.get_size(key) is not None

    def get_size(self, key: str) -> Optional[int]:
        return self._run(self._files.size(key))

    def delete(self, key: str) -> bool:
        return self._run(self._files.delete(key))

    def list_keys(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in self.list_files(prefix)]

    def list_files(self, prefix: str = "", modified_since: Optional[datetime] = None) -> list[FileEntry]:
        return self._run(self._files.entries(prefix, modified_since))

    def copy(self, source_key: str, key: str) -> str:
        return self._run(self._files.copy(source_key, key))

    def move(self, source_key: str, key: str) -> str:
        return self._run(self._files.move(source_key, key))

    def copy_local(self, source_path: AnyPath, key: str) -> str:
        return self.put(key, Path(source_path).read_bytes())

    def move_local(self, source_path: AnyPath, key: str) -> str:
        stored = self.copy_local(source_path, key)
        Path(source_path).unlink()
        return stored

    def cleanup_temp_files(self, older_than_hours: float = 24) -> int:
        return self._run(self._files.cleanup(older_than_hours))

    def cleanup_execution_temp_files(self) -> int:
        return self.cleanup_temp_files(0)

    def get_storage_info(self) -> dict[str, Any]:
        return self._run(self._files.info())

    def _run(self, steps: Steps[T]) -> T:
        return _finish(steps) if self._client is None else self._client.run(steps)


def _finish(steps: Steps[T]) -> T:
    """Runs an operation that makes no request."""
    try:
        request = next(steps)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError(f"a local operation asked for {request}")


def _on_server(client: Client, config: StorageConfig, execution_id: str) -> ServerFiles:
    files = ServerFiles(execution_id)
    client.run(files.open())
    if config.base_path is not None and not files.root.is_relative_to(config.base_path):
        raise ConfigurationError(
            f"path mismatch: the server's files of this execution are in {files.root}, which is not below "
            f"{config.base_path}; set STORAGE_BASE_PATH (or base_path) to what the server was started with"
        )
    return files


def _local_root(config: StorageConfig, execution_id: str) -> Path:
    base = config.base_path or os.environ.get("STORAGE_BASE_PATH")
    if not base:
        raise ConfigurationError("files of this machine need base_path or STORAGE_BASE_PATH")
    root = Path(base) if config.flat_structure else Path(base) / "executions" / execution_id
    return root.absolute()


def _as_config(config: Optional[Any]) -> StorageConfig:
    if config is None or isinstance(config, StorageConfig):
        return config or StorageConfig()
    default = StorageConfig()
    names = ("base_path", "max_file_size", "buffer_size", "flat_structure", "backend")
    values = {name: getattr(config, name, getattr(default, name)) for name in names}
    if values["base_path"] is not None:
        values["base_path"] = str(values["base_path"])
    return StorageConfig(**values)


def _to_json(value: Any) -> bytes:
    return json.dumps(value, indent=2, default=str).encode()


def _from_json(key: str, data: Optional[bytes]) -> Optional[Any]:
    try:
        return None if data is None else json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        _logger.warning("%s is not JSON: %s", key, error)
        return None


def _from_text(key: str, data: Optional[bytes], encoding: str) -> Optional[str]:
    try:
        return None if data is None else data.decode(encoding)
    except UnicodeDecodeError as error:
        _logger.warning("%s is not text: %s", key, error)
        return None
