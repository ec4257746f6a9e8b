"""Records outages. Clients check whether their failure is excused by one."""

import threading
import time
from dataclasses import dataclass

# A request that failed just after an outage was sent during it.
GRACE = 1.0


@dataclass
class _Outage:
    what: str
    start: float
    end: float | None = None
    grace: float = 0.0

    def is_now(self, now: float) -> bool:
        return self.end is None or now < self.end

    def touches(self, start: float, end: float) -> bool:
        return self.start <= end and (self.end is None or self.end + self.grace >= start)


class Outages:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[_Outage] = []

    def begin(self, what: str) -> None:
        with self._lock:
            if not any(one.what == what and one.end is None for one in self._all):
                self._all.append(_Outage(what, time.monotonic()))

    def end(self, what: str, grace: float = GRACE) -> None:
        with self._lock:
            for one in self._all:
                if one.what == what and one.end is None:
                    one.end, one.grace = time.monotonic(), grace

    def note(self, what: str, seconds: float) -> None:
        """An outage of known length."""
        with self._lock:
            now = time.monotonic()
            self._all.append(_Outage(what, now, now + seconds))

    def is_away(self, *whats: str) -> bool:
        """Whether one of these is down now."""
        now = time.monotonic()
        with self._lock:
            return any(one.what in whats and one.is_now(now) for one in self._all)

    def excuses(self, start: float, *whats: str) -> bool:
        """Whether one of these was down, or had just come back, at some moment since start."""
        now = time.monotonic()
        with self._lock:
            return any(one.what in whats and one.touches(start, now) for one in self._all)
