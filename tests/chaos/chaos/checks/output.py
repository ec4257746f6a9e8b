"""Output without gaps or repeats: a program that counts on both streams, and what was received of it."""

import time
from dataclasses import dataclass, field


def program(lines: int, burst: int, silence: float) -> str:
    """A shell line that counts to `lines` on standard output and standard error, in bursts."""
    body = f"i=0; while [ $i -lt {lines} ]; do echo o$i; echo e$i >&2; i=$((i+1)); [ $((i % {burst})) -eq 0 ] && sleep {silence}; done; true"
    return f"bash -c '{body}'"


@dataclass
class Heard:
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    # What broke the stream, and the errors of joining it again, each with the lines received by then.
    story: list[str] = field(default_factory=list)

    def add(self, out: str | None, err: str | None) -> None:
        if out:
            self.out.append(out)
        if err:
            self.err.append(err)

    def note(self, what: str) -> None:
        self.story.append(f"{time.strftime('%H:%M:%S')} after {self.describe()}: {what}")

    def is_complete_up_to(self, line: int) -> bool:
        """Whether both streams have produced this many lines."""
        return all("".join(stream).count("\n") >= line for stream in (self.out, self.err))

    def describe(self) -> str:
        return f"{''.join(self.out).count(chr(10))} lines of output and {''.join(self.err).count(chr(10))} of errors"

    def differences(self, lines: int) -> str:
        """Returns what is missing, repeated or broken. Empty if nothing is."""
        found = [_difference("stdout", "o", "".join(self.out), lines), _difference("stderr", "e", "".join(self.err), lines)]
        return "; ".join(one for one in found if one)


def _difference(name: str, letter: str, text: str, lines: int) -> str:
    expected = [f"{letter}{number}" for number in range(lines)]
    if text == "".join(f"{line}\n" for line in expected):
        return ""
    heard = text.split("\n")
    counted = {line: heard.count(line) for line in set(heard)}
    missing = [line for line in expected if line not in counted]
    repeated = [line for line in expected if counted.get(line, 0) > 1]
    other = [line for line in heard if line and line not in set(expected)]
    parts = [f"{what} {_few(found)}" for what, found in (("lost", missing), ("repeated", repeated), ("broken", other)) if found]
    return f"{name}: {', '.join(parts) or 'lines are in another order'}"


def _few(lines: list[str]) -> str:
    return f"{len(lines)} lines ({lines[0]} to {lines[-1]})" if len(lines) > 1 else f"line {lines[0]}"
