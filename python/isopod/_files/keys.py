"""Keys, as the server reads them, so that paths can be computed without asking it.

``flat`` is for files in a directory that has none of an execution's directories: a key is then the path below it.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from uuid import uuid4

from ..errors import ConfigurationError

#: The directories of an execution, by the name that ``get_NAME_path`` has for them.
SUBDIRS = {
    "artifacts": "artifacts",
    "temp": "temp",
    "results": "results",
    "plots": "results/plots",
    "reports": "results/reports",
    "outputs": "outputs",
    "logs": "logs",
}
_FIRST = frozenset(directory.split("/")[0] for directory in SUBDIRS.values())
_EXECUTION_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def normalize_key(key: str, flat: bool = False) -> str:
    """The key under which a file is stored. A key outside of the execution's directories is an artifact."""
    parts = [part for part in key.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts:
        raise ConfigurationError("a key must name a file")
    if any(part == ".." or "\0" in part for part in parts):
        raise ConfigurationError("a key must not contain `..` or NUL")
    path = "/".join(parts if flat or parts[0] in _FIRST else ["artifacts", *parts])
    if len(path.encode()) > 900 or any(len(part.encode()) > 255 for part in parts):
        raise ConfigurationError("a key must have at most 900 bytes, and each name in it at most 255")
    return path


def below(directory: str, key: str, flat: bool = False) -> str:
    """The key of a file in one of the directories, or the directory itself: an empty key if ``flat``."""
    if flat:
        return normalize_key(key, flat) if key.strip("/") else ""
    inner = key.removeprefix(f"{directory}/")
    return normalize_key(f"{directory}/{inner}")


def generate_key(prefix: str = "", suffix: str = "", flat: bool = False) -> str:
    """A key that no other call returns: ``{prefix}_{time}_{8 hex}{suffix}``."""
    time = datetime.now(timezone.utc).strftime("%Y%m%d_%H%M%S")
    name = "_".join(part for part in (prefix, time, uuid4().hex[:8]) if part)
    return normalize_key(name + suffix, flat)


def check_execution_id(execution_id: str) -> str:
    if not _EXECUTION_ID.fullmatch(execution_id):
        raise ConfigurationError(
            f"invalid execution id {execution_id!r}: an id has 1 to 128 letters, digits, `.`, `_` and `-`, "
            "and doesn't start with a dot"
        )
    return execution_id
