"""A program that is installed in a sandbox and used there by root and by `user`."""

import traceback

from runner.box import Box
from runner.outcome import ABSENT, ACCOUNTS, FAILS, WORKS, Outcome, Unreachable

PROGRAMS = {}


class Program:
    """One row of the table. A subclass says how to install and use it, and is registered under its `name`."""

    name = title = ""
    # Packages of Debian.
    packages = ()
    # Kernel features that its sandbox asks for.
    features = ()
    # The memory of its sandbox in MiB, if it is not the usual.
    memory = None
    # Its CPUs, if they are not the usual and its memory isn't either.
    cpus = None
    # A line of shell that prints its version. It runs as `user` after the use.
    version = ""
    note = ""
    # Why it does not work yet, by account, and what its error contains.
    gaps = {}
    known_error = ""

    def __init_subclass__(cls):
        if cls.name:
            PROGRAMS[cls.name] = cls

    def set_up(self, box):
        """What root does once, after the packages are installed."""

    def use(self, box, account):
        """Uses it and asserts what came out. Returns a phrase if something else than `works` is meant to be so."""
        raise NotImplementedError


def run(program):
    """Runs a program in a sandbox of its own."""
    outcome = Outcome(program.name, program.title, note=program.note, gaps=dict(program.gaps), known_error=program.known_error)
    try:
        with Box(program.features, program.memory, program.cpus) as box:
            box.install(program.packages)
            program.set_up(box)
            for account in ACCOUNTS:
                outcome.cells[account] = _use(program, box, account, outcome)
            outcome.version = box.sh(program.version).strip() if program.version else "–"
    except BaseException as error:
        for account in ACCOUNTS:
            outcome.cells.setdefault(account, _judge(error, account, outcome))
    # The use may have found out something that readers should know.
    outcome.note = program.note
    if outcome.is_absent:
        outcome.note = "; ".join(filter(None, [outcome.note, "a package is not reachable from the machine of this run"]))
    return outcome


def _use(program, box, account, outcome):
    try:
        return program.use(box, account) or WORKS
    except Exception as error:
        return _judge(error, account, outcome)


def _judge(error, account, outcome):
    if isinstance(error, Unreachable):
        outcome.errors[account] = str(error)
        return ABSENT
    outcome.errors[account] = "".join(traceback.format_exception(error))[-4000:]
    return FAILS
