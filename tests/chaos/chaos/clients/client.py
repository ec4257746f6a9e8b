"""A client: takes turns until it is stopped. A call that fails without an excuse is a violation."""

import random
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from e2b_code_interpreter import Sandbox

from chaos import sdk
from chaos.context import Context
from chaos.ledger import Life, Owned

T = TypeVar("T")

# A refused client does not retry at once.
AFTER_A_FAILURE = 0.3
RESUME_DEADLINE = 45.0


class Failed(Exception):
    """The call failed, and that was already reported."""


class Client(threading.Thread):
    # Seconds between turns, at most.
    pause = 0.3

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.context = context
        self.draw = random.Random(f"client/{context.seed}/{name}")
        self._open: dict[str, Sandbox] = {}

    def turn(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self.context.stop.is_set():
            try:
                self.turn()
            except Failed:
                self.context.stop.wait(AFTER_A_FAILURE)
            except Exception:
                self.context.violations.add("suite", f"the client {self.name} works", traceback.format_exc()[-480:])
            self.context.stop.wait(self.draw.uniform(0, self.pause))

    def call(
        self,
        what: str,
        action: Callable[[], T],
        excuses: tuple[str, ...] = (),
        sandbox: Owned | None = None,
        is_given_up: bool = False,
    ) -> T:
        """Does it, or raises Failed. Server, database and the death of the sandbox itself are always an excuse.

        `is_given_up`: the client itself breaks the call off.
        """
        start = time.monotonic()
        try:
            done = action()
        except Exception as error:
            self.context.ledger.count("calls that failed")
            self._open.pop(sandbox.id if sandbox else "", None)
            is_excused = self.context.outages.excuses(start, "server", "database", *excuses)
            if not is_excused and not is_given_up and not (sandbox and sandbox.life is not Life.ALIVE):
                took = time.monotonic() - start
                self.context.violations.add(
                    "calls", f"{what} succeeds, for nothing that it needs is away", f"after {took:.1f} s {error!r}"
                )
            raise Failed from error
        self.context.ledger.count("calls that succeeded")
        return done

    def open(self, sandbox: Owned) -> Sandbox:
        """The SDK's object for a sandbox, kept between turns as a program would keep it."""
        if sandbox.id not in self._open:
            self._open[sandbox.id] = self.call(f"connecting to {sandbox.id}", lambda: sdk.connect(sandbox.id), (), sandbox)
        return self._open[sandbox.id]

    def resume(self, sandbox: Owned) -> None:
        """Connecting resumes it, whether the pause was acknowledged or not."""
        deadline = time.monotonic() + RESUME_DEADLINE
        while sandbox.life is Life.ALIVE:
            try:
                opened = sdk.connect(sandbox.id)
                opened.commands.run("true", timeout=20)
                return
            except Exception as error:
                is_away = self.context.outages.is_away("server", "database", "disk", "store", "mounts")
                if is_away and self.context.stop.is_set():
                    return
                if is_away:
                    deadline = time.monotonic() + RESUME_DEADLINE
                elif time.monotonic() > deadline:
                    self.context.violations.add(
                        "pause", f"{sandbox.id} runs again after a pause or an attempt at one", repr(error)
                    )
                    sandbox.life = Life.LOST
                    return
            time.sleep(0.3)
