"""The warm interpreter outside of the sandboxes dies. The only visible effect is slower starts."""

from chaos.context import Context
from chaos.faults.pick import pick


def kill(context: Context, choice: float) -> str | None:
    victim = pick(context.platform.processes.zygote(), choice)
    return f"zygote {victim.pid}" if victim and victim.kill() else None
