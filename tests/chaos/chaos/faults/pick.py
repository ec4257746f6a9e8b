"""Selects one of several victims, by the schedule's choice."""

from typing import TypeVar

T = TypeVar("T")


def pick(victims: list[T], choice: float) -> T | None:
    return victims[int(choice * len(victims))] if victims else None
