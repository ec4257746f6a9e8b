"""What was acknowledged to clients: sandboxes, and the files in them. Checks compare it with the actual state."""

import random
import threading
from dataclasses import dataclass, field
from enum import Enum


class Life(Enum):
    ALIVE = "alive"
    # Its end was requested, so it may exist or not.
    ENDING = "ending"
    ENDED = "ended"
    # We killed its guest, so it must end, with a reason.
    VICTIM = "victim"
    # A check found it missing and reported that once.
    LOST = "lost"


@dataclass(frozen=True)
class Content:
    """Bytes that can be generated again instead of being stored."""

    tag: str
    size: int

    def bytes(self) -> bytes:
        return random.Random(self.tag).randbytes(self.size)


@dataclass
class File:
    path: str
    # The last acknowledged version, and those sent since then without a response.
    acknowledged: Content | None = None
    pending: list[Content] = field(default_factory=list)
    in_workspace: bool = False
    # When a write last ended without a response.
    broke_off_at: float = 0.0
    # Locked while it is written or compared.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def difference(self, data: bytes | None) -> tuple[str, str] | None:
        """Returns the expected and the found content (None: no such file), or None if they are the same."""
        possible = [content.bytes() for content in [self.acknowledged, *self.pending] if content is not None]
        if data in possible or (data is None and self.acknowledged is None):
            return None
        found = "no such file" if data is None else f"{len(data)} bytes"
        if self.acknowledged is None:
            return f"was not acknowledged: it is there as a whole ({self.pending[-1].size} bytes) or not at all", found
        wanted = possible[0]
        expected = f"has the {len(wanted)} bytes of an acknowledged write"
        if data is None:
            return expected, found
        versions = ", ".join(f"{len(one)} bytes from byte {_differs_at(one, data)} on" for one in possible)
        return expected, f"{found}, which differ from what was sent: {versions}"


def _differs_at(one: bytes, other: bytes) -> int:
    both = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in both if left != right), min(len(one), len(other)))


@dataclass
class Owned:
    """A sandbox whose create was acknowledged."""

    id: str
    template: str
    # The execution whose files it has, if any.
    execution: str | None = None
    life: Life = Life.ALIVE
    files: dict[str, File] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _users: int = 0
    _is_reserved: bool = False

    def enter(self) -> bool:
        """Requests shared use. False while another client pauses or ends it."""
        with self._lock:
            if self._is_reserved or self.life is not Life.ALIVE:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1

    def reserve(self) -> bool:
        """Requests exclusive use. False while another client uses it."""
        with self._lock:
            if self._is_reserved or self._users or self.life is not Life.ALIVE:
                return False
            self._is_reserved = True
            return True

    def release(self) -> None:
        with self._lock:
            self._is_reserved = False


class Ledger:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sandboxes: dict[str, Owned] = {}
        # Marks of creates without a response, to find what they may have left.
        self._unanswered: set[str] = set()
        # Marks of creates whose client left before the response, and when it did.
        self._abandoned: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + by

    def add(self, sandbox: Owned) -> None:
        with self._lock:
            self._sandboxes[sandbox.id] = sandbox

    def get(self, sandbox_id: str) -> Owned | None:
        with self._lock:
            return self._sandboxes.get(sandbox_id)

    def alive(self, template: str | None = None) -> list[Owned]:
        return [one for one in self.of_life(Life.ALIVE) if template in (None, one.template)]

    def of_life(self, life: Life) -> list[Owned]:
        with self._lock:
            return [one for one in self._sandboxes.values() if one.life is life]

    def make_victim(self, sandbox_id: str) -> None:
        """Called before its guest is killed, so that its end does not count as a loss."""
        with self._lock:
            found = self._sandboxes.setdefault(sandbox_id, Owned(sandbox_id, "unknown"))
            if found.life in (Life.ALIVE, Life.LOST):
                found.life = Life.VICTIM

    def add_if_new(self, sandbox: Owned) -> Owned:
        """A victim may be killed before its create was acknowledged."""
        with self._lock:
            return self._sandboxes.setdefault(sandbox.id, sandbox)

    def note_unanswered(self, mark: str) -> None:
        with self._lock:
            self._unanswered.add(mark)

    def is_unanswered(self, mark: str) -> bool:
        with self._lock:
            return mark in self._unanswered

    def note_abandoned(self, mark: str, at: float) -> None:
        with self._lock:
            self._abandoned[mark] = at

    def abandoned_at(self, mark: str) -> float | None:
        with self._lock:
            return self._abandoned.get(mark)

    def workspace_files(self) -> list[tuple[Owned, File]]:
        """Returns all files of the workspace with known content, including those of ended sandboxes."""
        with self._lock:
            sandboxes = list(self._sandboxes.values())
        files = [(one, file) for one in sandboxes for file in list(one.files.values()) if file.in_workspace]
        # A write that died with its sandbox was not undone.
        return [(one, file) for one, file in files if one.life is Life.ALIVE or not file.pending]
