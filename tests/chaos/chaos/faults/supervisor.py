"""The process that holds the workspace's connections dies. The worker goes on, and there is a supervisor again."""

from chaos.context import Context
from chaos.faults.pick import pick

# Both dead within this time: nobody holds the connections, and mounts are made anew.
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
