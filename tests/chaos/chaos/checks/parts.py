"""Killed parts that are needed are running again: supervisor and worker of the workspace, and the zygote."""

import time

from chaos.checks.eventually import eventually
from chaos.context import Context

DEADLINE = 20.0
PARTS = {"supervisor": "storage supervisor", "worker": "storage worker", "zygote": "zygote"}


class Parts:
    def __init__(self) -> None:
        self._missing_since: dict[str, float] = {}
        # Reported once, because a part that never comes back would be reported at every step.
        self._told: set[str] = set()

    def was_killed(self, name: str) -> None:
        """Records that it was alive until now."""
        self._missing_since.pop(name, None)

    def check(self, context: Context) -> None:
        """Checks without waiting, because the next fault may come while a part is missing."""
        for name in PARTS:
            if getattr(context.platform.processes, name)():
                self._missing_since.pop(name, None)
                self._told.discard(name)
            elif time.monotonic() - self._missing_since.setdefault(name, time.monotonic()) > DEADLINE:
                self._tell(context, name)

    def check_at_the_end(self, context: Context) -> None:
        for name in PARTS:
            if not eventually(DEADLINE, getattr(context.platform.processes, name), 0.2):
                self._tell(context, name)

    def _tell(self, context: Context, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            context.violations.add("parts", f"the {PARTS[name]} runs again {DEADLINE:.0f} s after its death", "there is none")
