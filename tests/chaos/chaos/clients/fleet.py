"""Creates, pauses, resumes and ends sandboxes."""

import itertools
import time
from functools import partial

from e2b_code_interpreter import Sandbox

from chaos import sdk
from chaos.clients.client import Client, Failed
from chaos.clients.hang_up import create_and_leave
from chaos.context import Context
from chaos.ledger import Life, Owned
from chaos.server import INTERPRETER

WANTED = {"base": 5, INTERPRETER: 2}
# A create takes a few milliseconds to a second.
LONGEST_WAIT = 0.3


class Fleet(Client):
    pause = 0.5

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name)
        self._numbers = itertools.count(1)

    def turn(self) -> None:
        self._finish_ends()
        for template, wanted in WANTED.items():
            if len(self.context.ledger.alive(template)) < wanted:
                self._create(template)
                return
        chosen = self.draw.choices([self._end, self._pause, self._hang_up, lambda: None], [3, 3, 1, 3])[0]
        chosen()

    def _create(self, template: str) -> None:
        mark = f"{self.name}-{next(self._numbers)}"
        execution = mark if template == "base" and self.draw.random() < 0.5 else None
        metadata = {"execution_id": execution} if execution else {}
        excuses = ("disk", "guest") + (("store", "mounts") if execution else ())
        try:
            made = self.call(f"create from {template}", lambda: sdk.create(template, mark, **metadata), excuses)
        except Failed:
            self.context.ledger.note_unanswered(mark)
            raise
        owned = self.context.ledger.add_if_new(Owned(made.sandbox_id, template, execution))
        owned.template, owned.execution = template, execution
        self.context.ledger.count("creates acknowledged")

    def _hang_up(self) -> None:
        """Disconnects in the middle of a create. The server removes what was created by then."""
        mark = f"{self.name}-{next(self._numbers)}"
        wanted = {"templateID": "base", "timeout": sdk.LIFETIME, "metadata": {sdk.MARK: mark}}
        made = create_and_leave(self.context.platform.server, wanted, self.draw.uniform(0, LONGEST_WAIT))
        if made is not None:
            # The response came after all.
            self.context.ledger.add_if_new(Owned(made, "base", life=Life.ENDING))
            return
        self.context.ledger.note_abandoned(mark, time.monotonic())
        self.context.ledger.count("creates that their client left")

    def _end(self) -> None:
        candidates = self.context.ledger.alive()
        sandbox = self.draw.choice(candidates) if candidates else None
        if sandbox is not None and sandbox.reserve():
            if sandbox.life is Life.ALIVE:
                sandbox.life = Life.ENDING
            sandbox.release()

    def _finish_ends(self) -> None:
        """An end that was not acknowledged is requested again."""
        for sandbox in self.context.ledger.of_life(Life.ENDING):
            self.call(f"kill of {sandbox.id}", partial(sdk.kill, sandbox.id), ("disk",))
            sandbox.life = Life.ENDED
            self.context.ledger.count("ends acknowledged")

    def _pause(self) -> None:
        candidates = self.context.ledger.alive("base")
        sandbox = self.draw.choice(candidates) if candidates else None
        if sandbox is None or not sandbox.reserve():
            return
        try:
            keep_memory = self.draw.random() < 0.7
            # A pause is refused while a call into the workspace is blocked.
            excuses = ("disk",) + (("store", "mounts", "worker", "supervisor") if sandbox.execution else ())
            self.call(
                f"pause of {sandbox.id}",
                partial(Sandbox.pause, sandbox.id, keep_memory=keep_memory, request_timeout=sdk.REQUEST),
                excuses,
                sandbox,
            )
            self.context.ledger.count("pauses acknowledged")
        except Failed:
            pass
        finally:
            self.resume(sandbox)
            sandbox.release()
