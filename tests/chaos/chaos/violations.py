"""Violated guarantees: printed when they are found, and kept for the report."""

import threading
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Violation:
    seed: int
    step: int
    faults: str
    seconds: float
    check: str
    expected: str
    found: str


class Violations:
    def __init__(self, seed: int, limit: int) -> None:
        self.seed, self.limit = seed, limit
        self.all: list[Violation] = []
        self._lock = threading.Lock()
        self._step, self._recent = 0, [""]
        self._start = time.monotonic()

    def enter(self, step: int, faults: str) -> None:
        """Sets the step of the following findings."""
        with self._lock:
            self._step = step
            self._recent = [*self._recent[-4:], f"{step}: {faults}"]

    def add(self, check: str, expected: str, found: str) -> None:
        with self._lock:
            # Findings after the last one that counts are repetitions.
            if self.is_too_many():
                return
            seconds = round(time.monotonic() - self._start, 1)
            one = Violation(self.seed, self._step, "; ".join(self._recent[-3:]), seconds, check, expected, found[:3000])
            self.all.append(one)
        print(
            f"VIOLATION seed={one.seed} step={one.step} at {seconds}s [{check}]\n"
            f"  expected: {expected}\n  found:    {one.found}\n  faults:   {one.faults}"
        )

    def is_too_many(self) -> bool:
        return len(self.all) >= self.limit

    def counts(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for one in self.all:
            counted[one.check] = counted.get(one.check, 0) + 1
        return counted

    def as_data(self) -> list[dict]:
        return [asdict(one) for one in self.all]
