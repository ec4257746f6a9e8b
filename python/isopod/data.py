"""Large data of a toolkit as parquet files (``pip install isopod[data]``).

    data = DataStorage(storage, "defillama")
    answer = await data.store_if_large(rows, "protocols", "tvl")

Data of up to ``threshold_kb`` comes back as it is. Larger data goes to
``artifacts/{toolkit}/{data_type}/{prefix}_{time}_{8 hex}.parquet``, and the answer says where it is, so that a model gets
a path instead of megabytes.
"""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, Optional

from ._files.keys import generate_key
from .errors import ConfigurationError
from .storage import FileStorage, SyncFileStorage

if TYPE_CHECKING:
    import pandas

__all__ = ["DataStorage", "SyncDataStorage"]

DEFAULT_THRESHOLD_KB = 1000


class _Data:
    def __init__(self, toolkit_name: str, threshold_kb: float) -> None:
        self.toolkit_name = toolkit_name
        self.threshold_kb = threshold_kb

    def estimate_size_kb(self, data: Any) -> float:
        """The size of the data as JSON, in units of 1024 bytes."""
        return len(json.dumps(data, default=str).encode()) / 1024

    def should_store(self, data: Any) -> bool:
        """Whether the data is too large to be passed on."""
        return self.estimate_size_kb(data) > self.threshold_kb

    def _new_key(self, data_type: str, prefix: str) -> str:
        return generate_key(f"artifacts/{self.toolkit_name}/{data_type}/{prefix}", ".parquet")


class DataStorage(_Data):
    """The data of one toolkit in an execution's files, with awaited calls."""

    def __init__(
        self, file_storage: FileStorage, toolkit_name: str, threshold_kb: float = DEFAULT_THRESHOLD_KB
    ) -> None:
        super().__init__(toolkit_name, threshold_kb)
        self.file_storage = file_storage

    async def store_parquet(self, data: Any, data_type: str, prefix: str) -> tuple[str, float]:
        """Writes a table: a list of rows, one row, or a data frame. Returns its path and size in KB.

        A dictionary is one row, also if its values are lists. Fields of dictionaries inside become columns (``a.b``).
        """
        content = await asyncio.to_thread(_to_parquet, data)
        path = await self.file_storage.put(self._new_key(data_type, prefix), content)
        return path, _kilobytes(content)

    async def load_parquet(self, path_or_key: str) -> list[dict[str, Any]]:
        """Reads the rows of a table that ``store_parquet`` wrote, by its path or key."""
        return _rows(await self.load_frame(path_or_key))

    async def load_frame(self, path_or_key: str) -> "pandas.DataFrame":
        """Reads a table that ``store_parquet`` wrote as a data frame."""
        content = await self.file_storage.get(path_or_key.removeprefix(f"{self.file_storage.root}/"))
        return await asyncio.to_thread(_from_parquet, path_or_key, content)

    async def store_if_large(self, data: Any, data_type: str, prefix: str) -> dict[str, Any]:
        """``{"stored": false, "data": …}``, or ``{"stored": true, "file_path": …, "size_kb": …, "rows": …}``."""
        if not self.should_store(data):
            return {"stored": False, "data": data}
        return _reference(data, *await self.store_parquet(data, data_type, prefix))


class SyncDataStorage(_Data):
    """The data of one toolkit in an execution's files, with blocking calls. See ``DataStorage``."""

    def __init__(
        self, file_storage: SyncFileStorage, toolkit_name: str, threshold_kb: float = DEFAULT_THRESHOLD_KB
    ) -> None:
        super().__init__(toolkit_name, threshold_kb)
        self.file_storage = file_storage

    def store_parquet(self, data: Any, data_type: str, prefix: str) -> tuple[str, float]:
        content = _to_parquet(data)
        return self.file_storage.put(self._new_key(data_type, prefix), content), _kilobytes(content)

    def load_parquet(self, path_or_key: str) -> list[dict[str, Any]]:
        return _rows(self.load_frame(path_or_key))

    def load_frame(self, path_or_key: str) -> "pandas.DataFrame":
        content = self.file_storage.get(path_or_key.removeprefix(f"{self.file_storage.root}/"))
        return _from_parquet(path_or_key, content)

    def store_if_large(self, data: Any, data_type: str, prefix: str) -> dict[str, Any]:
        if not self.should_store(data):
            return {"stored": False, "data": data}
        return _reference(data, *self.store_parquet(data, data_type, prefix))


def _reference(data: Any, path: str, size_kb: float) -> dict[str, Any]:
    return {"stored": True, "file_path": path, "size_kb": size_kb, "rows": len(_frame(data))}


def _kilobytes(content: bytes) -> float:
    return round(len(content) / 1024, 2)


def _rows(frame: "pandas.DataFrame") -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _from_parquet(name: str, content: Optional[bytes]) -> "pandas.DataFrame":
    if content is None:
        raise FileNotFoundError(f"there is no table at {name}")
    frame: "pandas.DataFrame" = _pandas().read_parquet(io.BytesIO(content))
    return frame


def _to_parquet(data: Any) -> bytes:
    frame, buffer = _frame(data), io.BytesIO()
    frame.to_parquet(buffer, index=False, compression=_compression())
    return buffer.getvalue()


def _compression() -> str:
    """Some builds of pyarrow have no snappy."""
    import pyarrow

    return "snappy" if pyarrow.Codec.is_available("snappy") else "gzip"


def _frame(data: Any) -> Any:
    pandas = _pandas()
    if isinstance(data, pandas.DataFrame):
        return data
    if isinstance(data, dict):
        return pandas.json_normalize(data)
    return pandas.DataFrame(data)


def _pandas() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("DataStorage needs pandas and pyarrow: pip install 'isopod[data]'") from error
    return pandas
