"""The process that forks launchers dies. Sandboxes keep running, and the next start gets a new spawner."""

from chaos.context import Context
from chaos.faults.pick import pick


def kill(context: Context, choice: float) -> str | None:
    victim = pick(context.platform.processes.spawner(), choice)
    return f"spawner {victim.pid}" if victim and victim.kill() else None
