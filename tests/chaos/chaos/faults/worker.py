"""The process that serves the workspace dies. Its supervisor starts another, and whoever waits goes on."""

from chaos.context import Context
from chaos.faults.pick import pick

# Both dead within this time: nobody holds the connections, and mounts are made anew.
TOGETHER = 5.0
REMOUNT = 20.0


def kill(context: Context, choice: float) -> str | None:
    victim = pick(context.platform.processes.worker(), choice)
    if victim is None:
        return None
    context.outages.note("worker", TOGETHER)
    if context.outages.is_away("supervisor"):
        context.outages.note("mounts", REMOUNT)
    return f"worker {victim.pid}" if victim.kill() else None
