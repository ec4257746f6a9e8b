"""A Python process of the interpreter dies in its sandbox. The running cell fails, and the next one gets a new kernel."""

from chaos.context import Context
from chaos.faults.pick import pick

# The kernel and its forkserver may be killed one after the other.
EXCUSED = 3.0


def kill(context: Context, choice: float) -> str | None:
    victim = pick(context.platform.processes.kernel(), choice)
    if victim is None:
        return None
    context.outages.note(f"kernel of {victim.sandbox}", EXCUSED)
    return f"kernel {victim.pid} of {victim.sandbox}" if victim.kill() else None
