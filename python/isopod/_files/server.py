"""The files of an execution on the server, ``/api/v1/executions``."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Mapping, Optional

from .._http import Request, Steps, ask, path_of, segment
from . import FileEntry
from .keys import normalize_key

_METADATA = "X-Isopod-Metadata"
#: Seconds for a request with a file's contents.
_TRANSFER = 600.0


class ServerFiles:
    """Files that the server keeps in its workspace, at the same path on the host and in sandboxes."""

    def __init__(self, execution_id: str) -> None:
        self._base = f"/api/v1/executions/{segment(execution_id)}"
        self.root = Path()

    def open(self) -> Steps[dict[str, Any]]:
        """Creates the directories, and learns where they are."""
        info: dict[str, Any] = yield from ask(Request("PUT", self._base))
        self.root = Path(info["root_path"])
        return info

    def put(self, key: str, data: bytes, metadata: Optional[Mapping[str, Any]]) -> Steps[str]:
        # A header is ASCII, and so is what `json` writes.
        headers = {_METADATA: json.dumps(metadata)} if metadata else {}
        request = Request("PUT", self._file(key), content=data, headers=headers, timeout=_TRANSFER)
        written = yield from ask(request)
        return str(written["path"])

    def get(self, key: str) -> Steps[Optional[bytes]]:
        reply = yield Request("GET", self._file(key), accept=(404,), timeout=_TRANSFER)
        return None if reply.status_code == 404 else reply.content

    def size(self, key: str) -> Steps[Optional[int]]:
        reply = yield Request("HEAD", self._file(key), accept=(404,))
        return None if reply.status_code == 404 else int(reply.headers["content-length"])

    def metadata(self, key: str) -> Steps[Optional[dict[str, Any]]]:
        reply = yield Request("HEAD", self._file(key), accept=(404,))
        text = reply.headers.get(_METADATA) if reply.status_code != 404 else None
        return None if text is None else dict(json.loads(text))

    def delete(self, key: str) -> Steps[bool]:
        reply = yield Request("DELETE", self._file(key), accept=(404,))
        return reply.status_code != 404

    def entries(self, prefix: str, modified_since: Optional[datetime]) -> Steps[list[FileEntry]]:
        params = {"prefix": prefix} if prefix else {}
        if modified_since is not None:
            params["modifiedSince"] = modified_since.astimezone().isoformat()
        found: list[FileEntry] = []
        while True:
            reply = yield Request("GET", f"{self._base}/files", params=params)
            found += [_entry(one) for one in reply.json()]
            token = reply.headers.get("x-next-token")
            if not token or token == params.get("nextToken"):
                return found
            params = {**params, "nextToken": token}

    def copy(self, source: str, target: str) -> Steps[str]:
        return (yield from self._transfer("copy", source, target))

    def move(self, source: str, target: str) -> Steps[str]:
        return (yield from self._transfer("move", source, target))

    def cleanup(self, older_than_hours: float) -> Steps[int]:
        body = {"older_than_hours": older_than_hours}
        removed = yield from ask(Request("POST", f"{self._base}/cleanup", json=body))
        return int(removed["removed"])

    def info(self) -> Steps[dict[str, Any]]:
        return dict((yield from ask(Request("GET", f"{self._base}/info"))))

    def remove(self) -> Steps[None]:
        """Deletes everything and frees the id."""
        yield Request("DELETE", self._base)

    def _transfer(self, verb: str, source: str, target: str) -> Steps[str]:
        body = {"from": normalize_key(source), "to": normalize_key(target)}
        done = yield from ask(Request("POST", f"{self._base}/{verb}", json=body))
        return str(self.root / done["key"])

    def _file(self, key: str) -> str:
        return f"{self._base}/files/{path_of(normalize_key(key))}"


def _entry(one: Mapping[str, Any]) -> FileEntry:
    time = datetime.fromisoformat(str(one["modified_at"]).replace("Z", "+00:00"))
    return FileEntry(str(one["key"]), int(one["size"]), time)
