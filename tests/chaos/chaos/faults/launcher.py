"""A process that prepares a sandbox dies. The affected create takes another one."""

from chaos.checks.eventually import eventually
from chaos.context import Context
from chaos.faults.pick import pick

# It exists only while the pool is being filled.
PATIENCE = 0.5


def kill(context: Context, choice: float) -> str | None:
    processes = context.platform.processes
    eventually(PATIENCE, lambda: bool(processes.launcher()), 0.01)
    victim = pick(processes.launcher(), choice)
    return f"launcher {victim.pid}" if victim and victim.kill() else None
