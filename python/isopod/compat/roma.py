"""ROMA's names: change the imports of its E2B guide to this module, and its code runs here.

    from isopod.compat.roma import ConfigManager, E2BToolkit, FileStorage
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Optional

from ..data import DataStorage, SyncDataStorage
from ..storage import FileStorage, StorageConfig, SyncFileStorage
from ..toolkit import AsyncE2BToolkit, E2BToolkit

__all__ = [
    "AsyncE2BToolkit",
    "Config",
    "ConfigManager",
    "DataStorage",
    "E2BToolkit",
    "FileStorage",
    "StorageConfig",
    "SyncDataStorage",
    "SyncFileStorage",
]


def _base_path() -> Optional[str]:
    return os.environ.get("STORAGE_BASE_PATH")


def _storage() -> StorageConfig:
    return StorageConfig(base_path=_base_path())


@dataclass
class Config:
    """The part of ROMA's configuration that concerns sandboxes and their files."""

    storage: StorageConfig = field(default_factory=_storage)


class ConfigManager:
    """Reads the environment. ROMA's other settings have no meaning here."""

    def load_config(self) -> Config:
        return Config()
