"""The process that serves the workspace dies. Its supervisor starts another, and waiting calls continue."""

from chaos.context import Context
from chaos.faults.pick import pick

# If both die within this time, the connections are lost, and mounts are created again.
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
