"""The bucket is unreachable, or does not respond."""

from chaos.context import Context
from chaos.proxy import Mode

GRACE = 5.0


def begin(context: Context, choice: float) -> str:
    mode = Mode.REFUSE if choice < 0.5 else Mode.HANG
    context.outages.begin("store")
    context.platform.bucket.proxy.cut(mode)
    return f"the store is cut off ({mode.value})"


def end(context: Context) -> None:
    context.platform.bucket.proxy.restore()
    context.outages.end("store", GRACE)
