"""What came of a command on a system."""

from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Unreachable(Exception):
    """The packages of a system cannot be downloaded from here, which says nothing about Isopod."""


@dataclass(frozen=True)
class Outcome:
    system: object
    # `first` or `second`.
    command: str
    word: str
    seconds: float = 0
    # How it passed, or why it did not.
    detail: str = ""


def total(outcomes, problems=()):
    """The last line of a run, and whether nothing failed and something passed."""
    count = {word: sum(outcome.word == word for outcome in outcomes) for word in (PASSED, FAILED, SKIPPED)}
    failed = count[FAILED] + len(problems)
    line = f"{count[PASSED]} passed, {failed} failed, {count[SKIPPED]} skipped"
    return line, failed == 0 and count[PASSED] > 0
