"""What sandboxes and snapshots must have."""

from dataclasses import dataclass, field, replace

from keeper import digest


@dataclass(frozen=True)
class Content:
    """What a keeper has, in all places. Never changed: copies share it."""

    secret: str
    pid: int
    child: int
    numbers: tuple = ()
    # At least that many.
    ticks: int = 0

    @classmethod
    def first(cls, state):
        return cls(state["secret"], state["pid"], state["child"]["pid"])

    def plus(self, number):
        return replace(self, numbers=(*self.numbers, number))

    def differences(self, state):
        """What is not as it must be, in words."""
        one = digest(self.numbers)
        expected = {
            "secret": self.secret,
            "pid": self.pid,
            "memory": one,
            "child": {"pid": self.child, "total": sum(self.numbers)},
            "file": one,
            "temporary": one,
            "database": one,
        }
        found = [f"{key} is {state.get(key)}, not {value}" for key, value in expected.items() if state.get(key) != value]
        if state["ticks"] < self.ticks:
            found.append(f"it has counted to {state['ticks']} after {self.ticks}")
        return found

    def seen(self, state):
        """Later states have counted further."""
        return replace(self, ticks=state["ticks"])


@dataclass
class Known:
    """A sandbox that was acknowledged."""

    id: str
    content: Content
    is_paused: bool = False
    # The snapshots of it that still exist.
    snapshots: dict = field(default_factory=dict)
