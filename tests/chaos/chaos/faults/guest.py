"""The first process of a sandbox dies, and with it the sandbox. It may be a pooled one."""

import threading
import time

from chaos.context import Context
from chaos.faults.pick import pick
from chaos.processes import Process

# A pooled sandbox may have been assigned just when it was killed.
WATCHED = 2.0


def kill(context: Context, choice: float) -> str | None:
    victim = pick(context.platform.processes.guest(), choice)
    if victim is None:
        return None
    # A concurrent create may have got this one.
    context.outages.note("guest", WATCHED)
    if victim.sandbox is not None:
        context.ledger.make_victim(victim.sandbox)
        return f"guest of {victim.sandbox}" if victim.kill() else None
    killed = victim.kill()
    threading.Thread(target=_watch, args=(context, victim), daemon=True).start()
    return f"guest {victim.pid} of the pool" if killed else None


def _watch(context: Context, victim: Process) -> None:
    """Finds out whether it was assigned to a client."""
    end = time.monotonic() + WATCHED
    while time.monotonic() < end:
        sandbox = context.platform.processes.sandbox_of(victim)
        if sandbox is not None:
            context.ledger.make_victim(sandbox)
            return
        time.sleep(0.01)
