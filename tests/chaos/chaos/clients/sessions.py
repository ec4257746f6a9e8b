"""Several callers request the sandbox of one key at once, through the SDK or the runs API. All get the same one."""

import itertools
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from chaos import sdk
from chaos.clients.client import Client
from chaos.context import Context
from chaos.ledger import Life, Owned
from chaos.server import INTERPRETER

CALLERS = 3
DEADLINE = 60.0


class Sessions(Client):
    pause = 0.8

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name)
        self._numbers = itertools.count(1)

    def turn(self) -> None:
        key = f"{self.name}-{self.context.seed}-{next(self._numbers)}"
        if self.draw.random() < 0.7:
            self._round(key, "base", lambda: sdk.create("base", key, **{"isopod.session": key}).sandbox_id)
            self._expect_one(key)
        else:
            self._round(key, INTERPRETER, lambda: self._execute(key))
            self._clean_up(key)

    def _round(self, key: str, template: str, ask: Callable[[], str]) -> None:
        with ThreadPoolExecutor(CALLERS) as pool:
            answers = list(pool.map(lambda _: self._insist(key, ask), range(CALLERS)))
        ids = {answer for answer in answers if answer}
        self.context.ledger.count("sessions")
        kept = [self.context.ledger.add_if_new(Owned(one, template)) for one in ids]
        # One that died in between was replaced correctly.
        if len(ids) > 1 and all(one.life is Life.ALIVE for one in kept):
            self.context.violations.add(
                "sessions", f"{CALLERS} callers get one sandbox for the key {key}", f"they got {sorted(ids)}"
            )
        for one in kept:
            if one.life is Life.ALIVE:
                one.life = Life.ENDING
        self.context.ledger.note_unanswered(key)

    def _insist(self, key: str, ask: Callable[[], str]) -> str | None:
        """Retries until there is a response, like a caller that needs one."""
        deadline = time.monotonic() + DEADLINE
        while not self.context.stop.is_set():
            start = time.monotonic()
            try:
                return ask()
            except Exception as error:
                excuses = ("server", "database", "disk", "guest", "store")
                if self.context.outages.excuses(start, *excuses):
                    deadline = time.monotonic() + DEADLINE
                else:
                    self.context.violations.add(
                        "sessions",
                        f"a caller gets the sandbox of {key}",
                        f"after {time.monotonic() - start:.1f} s {_words(error)}",
                    )
                    return None
                if time.monotonic() > deadline:
                    return None
            time.sleep(0.1)
        return None

    def _execute(self, key: str) -> str:
        answer = self.context.platform.server.ask("POST", f"/runtime/{key}/execute", {"command": "echo here"}, timeout=60)
        if not answer["success"]:
            raise RuntimeError(f"the run answers {answer.get('error')!r}")
        return answer["sandbox_id"]

    def _expect_one(self, key: str) -> None:
        found = self.call("list by metadata", lambda: sdk.listed({"isopod.session": key}))
        if len(found) > 1:
            self.context.violations.add("sessions", f"one sandbox has the key {key}", f"{[one.sandbox_id for one in found]}")

    def _clean_up(self, key: str) -> None:
        def ask() -> str:
            self.context.platform.server.ask("DELETE", f"/runtime/{key}/cleanup", timeout=60)
            return "done"

        self._insist(key, ask)


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.read()[:300]!r}"
    return repr(error)
