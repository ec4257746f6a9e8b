"""Waits for a state, with a time limit."""

import time
from collections.abc import Callable


def eventually(seconds: float, is_so: Callable[[], object], every: float = 0.1) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        if is_so():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
