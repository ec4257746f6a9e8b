"""The ways in which a client sends a file: at once, in pieces over a while, or aborted in the middle."""

import random
import time
from collections.abc import Iterator
from enum import Enum

PIECES = 8
LONGEST = 1.5


class Abandoned(Exception):
    """The client aborted deliberately."""


class Way(Enum):
    AT_ONCE = "at once"
    SLOWLY = "slowly"
    ABANDONED = "abandoned"


def draw_way(draw: random.Random) -> Way:
    return draw.choices(list(Way), [7, 2, 1])[0]


def body(data: bytes, way: Way, draw: random.Random) -> bytes | Iterator[bytes]:
    """The SDK's argument: bytes, or an iterator that it streams."""
    if way is Way.AT_ONCE:
        return data
    return _pieces(data, way, draw.uniform(0.1, LONGEST) / PIECES)


def _pieces(data: bytes, way: Way, pause: float) -> Iterator[bytes]:
    step = max(1, len(data) // PIECES)
    for start in range(0, len(data), step):
        if way is Way.ABANDONED and start >= len(data) // 2:
            raise Abandoned
        yield data[start : start + step]
        time.sleep(pause)
    if way is Way.ABANDONED:
        raise Abandoned
