"""Decides which fault comes when. Pure: the seed and the list of faults determine everything, so a seed can be replayed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

# How often each kind is drawn.
WEIGHTS = {
    "server": 5,
    "guest": 3,
    "kernel": 3,
    "zygote": 2,
    "spawner": 3,
    "launcher": 3,
    "worker": 4,
    "supervisor": 3,
    "stop": 1,
    "disk": 1,
    "store": 2,
    "database": 2,
}
# Faults that last for some steps. The others are over at once.
LASTING = ("disk", "store", "database")
LONGEST_PAUSE = 0.9


@dataclass(frozen=True)
class Strike:
    """One fault of a step. `choice` in [0, 1) selects one of the possible victims."""

    fault: str
    choice: float


@dataclass(frozen=True)
class Step:
    number: int
    # Seconds in which clients work undisturbed before the strikes.
    pause: float
    strikes: tuple[Strike, ...]
    # Lasting faults that end after the strikes of this step.
    ends: tuple[str, ...] = field(default=())

    def describe(self) -> str:
        words = [strike.fault for strike in self.strikes] + [f"end of {name}" for name in self.ends]
        return " + ".join(words) or "nothing"


def steps(seed: int, faults: tuple[str, ...]) -> Iterator[Step]:
    """The endless schedule of a seed."""
    draw = random.Random(f"schedule/{seed}")
    open_until: dict[str, int] = {}
    number = 0
    while True:
        number += 1
        ends = tuple(name for name, last in open_until.items() if last == number)
        for name in ends:
            del open_until[name]
        strikes = _strikes(draw, faults, frozenset(open_until) | frozenset(ends))
        for strike in strikes:
            if strike.fault in LASTING:
                open_until[strike.fault] = number + _duration(draw, strike.fault)
        yield Step(number, round(draw.uniform(0.05, LONGEST_PAUSE), 3), strikes, ends)


def _duration(draw: random.Random, fault: str) -> int:
    """In steps. Some outages of the store are longer than the timeouts of waiting calls."""
    is_long = draw.random() < 0.3 and fault == "store"
    return draw.randint(20, 40) if is_long else draw.randint(1, 3)


def _strikes(draw: random.Random, faults: tuple[str, ...], is_open: frozenset[str]) -> tuple[Strike, ...]:
    """Mostly one fault, sometimes two or three at once. An ongoing lasting fault is not started again."""
    count = draw.choices([1, 2, 3], [6, 3, 1])[0]
    found: list[Strike] = []
    for _ in range(count):
        possible = [name for name in faults if name not in is_open and name not in [one.fault for one in found]]
        # Only one lasting fault at a time, because two at once say nothing about either.
        if is_open or any(one.fault in LASTING for one in found):
            possible = [name for name in possible if name not in LASTING]
        if possible:
            name = draw.choices(possible, [WEIGHTS[name] for name in possible])[0]
            found.append(Strike(name, draw.random()))
    return tuple(found)
