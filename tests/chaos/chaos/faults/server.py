"""`isopod serve` dies. The campaign restarts it."""

from chaos.context import Context


def kill(context: Context, choice: float) -> str | None:
    return "server" if context.platform.server.kill() else None
