"""Isopod is E2B on your own machine: sandboxes for AI agents in one binary.

The package carries the ``isopod`` program and helpers for agents in Python:

    with isopod.session("run-7") as run:                 # one sandbox for all tool calls of a run
        print(run.execute("6 * 7").text)

    isopod.workflow("report.yaml").run()                 # a graph of steps
    isopod.tools.definitions("anthropic")                # tools for a language model
    isopod.FileStorage(execution_id="run-7")             # files that host and sandbox share
    isopod.E2BToolkit(execution_id="run-7")              # twelve tools in one sandbox

``find_program()`` says where the program is, and ``python -m isopod`` runs it. docs/python.md is the guide.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from . import tools as tools
    from .data import DataStorage as DataStorage
    from .data import SyncDataStorage as SyncDataStorage
    from .service import E2BSandboxService as E2BSandboxService
    from .service import SandboxService as SandboxService
    from .sessions import AsyncSession as AsyncSession
    from .sessions import Execution as Execution
    from .sessions import Session as Session
    from .sessions import asession as asession
    from .sessions import session as session
    from .storage import FileStorage as FileStorage
    from .storage import StorageConfig as StorageConfig
    from .storage import SyncFileStorage as SyncFileStorage
    from .toolkit import AsyncE2BToolkit as AsyncE2BToolkit
    from .toolkit import E2BToolkit as E2BToolkit
    from .workflows import Run as Run
    from .workflows import RunState as RunState
    from .workflows import Workflow as Workflow
    from .workflows import workflow as workflow

#: Where each name comes from. They are imported on first use, so that `find_program` needs no other package.
_HOMES = {
    "AsyncE2BToolkit": "toolkit",
    "AsyncSession": "sessions",
    "DataStorage": "data",
    "E2BSandboxService": "service",
    "E2BToolkit": "toolkit",
    "Execution": "sessions",
    "FileStorage": "storage",
    "Run": "workflows",
    "RunState": "workflows",
    "SandboxService": "service",
    "Session": "sessions",
    "StorageConfig": "storage",
    "SyncDataStorage": "data",
    "SyncFileStorage": "storage",
    "Workflow": "workflows",
    "asession": "sessions",
    "session": "sessions",
    "workflow": "workflows",
}
_MODULES = ("errors", "tools")

__all__ = [
    "AsyncE2BToolkit",
    "AsyncSession",
    "DataStorage",
    "E2BSandboxService",
    "E2BToolkit",
    "Execution",
    "FileStorage",
    "Run",
    "RunState",
    "SandboxService",
    "Session",
    "StorageConfig",
    "SyncDataStorage",
    "SyncFileStorage",
    "Workflow",
    "asession",
    "errors",
    "find_program",
    "session",
    "tools",
    "workflow",
]


def find_program() -> str:
    """Return the path of the ``isopod`` program that was installed with this package.

    Raises FileNotFoundError if there is none, for example because the files were copied without it.
    """
    directories = [sysconfig.get_path("scripts"), os.path.join(sys.prefix, "bin")]
    if sys.platform != "win32":
        directories.append(sysconfig.get_path("scripts", scheme="posix_user"))
    for directory in directories:
        program = os.path.join(directory, "isopod")
        if os.access(program, os.X_OK):
            return program
    # `pip install --target DIR` puts scripts beside the package.
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "isopod")
    found = beside if os.access(beside, os.X_OK) else shutil.which("isopod")
    if found is None:
        raise FileNotFoundError("the isopod program is not installed; try: pip install --force-reinstall isopod")
    return found


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
