"""The process that holds the workspace's connections dies. The worker continues, and a new supervisor is started."""

from chaos.context import Context
from chaos.faults.pick import pick

# If both die within this time, the connections are lost, and mounts are created again.
TOGETHER = 5.0
REMOUNT = 20.0


def kill(context: Context, choice: float) -> str | None:
    victim = pick(context.platform.processes.supervisor(), choice)
    if victim is None:
        return None
    context.outages.note("supervisor", TOGETHER)
    if context.outages.is_away("worker"):
        context.outages.note("mounts", REMOUNT)
    return f"supervisor {victim.pid}" if victim.kill() else None
