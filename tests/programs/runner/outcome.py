"""What a run of one program shows, and how it travels from the process that ran it: a line of JSON."""

import json
from dataclasses import asdict, dataclass, field

ACCOUNTS = ("root", "user")
WORKS, FAILS, ABSENT = "works", "fails", "not reachable"


class Unreachable(Exception):
    """A package cannot be downloaded from here. That says nothing about the sandbox."""


@dataclass
class Outcome:
    """One program. `cells` has a word for each account: WORKS, FAILS, ABSENT, or a phrase for what is meant to be so."""

    name: str
    title: str
    version: str = "–"
    cells: dict = field(default_factory=dict)
    note: str = ""
    errors: dict = field(default_factory=dict)
    # Why it is known not to work, by account.
    gaps: dict = field(default_factory=dict)
    # What the error of a gap contains. Another error is not the gap.
    known_error: str = ""

    @classmethod
    def broken(cls, name, title, why):
        return cls(name, title, cells=dict.fromkeys(ACCOUNTS, FAILS), errors=dict.fromkeys(ACCOUNTS, why))

    @classmethod
    def parse(cls, line):
        return cls(**json.loads(line))

    def to_json(self):
        return json.dumps(asdict(self))

    @property
    def problems(self):
        """What must not be: an account for which it fails, unless that is known, or a gap that has closed."""
        found = []
        for account, word in self.cells.items():
            error = self.errors.get(account, "no reason")
            if word == FAILS and (account not in self.gaps or self.known_error not in error):
                found.append(f"{self.name} as {account}: {error}")
            if word == WORKS and account in self.gaps:
                found.append(f"{self.name} as {account} works now: take it out of its gaps")
        return found

    @property
    def is_absent(self):
        return ABSENT in self.cells.values()
