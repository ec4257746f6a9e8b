"""The disk of the state directory is full. Writes fail, but acknowledged ones stay."""

from chaos.context import Context

# Clients get the error of a full disk a moment later.
GRACE = 5.0


def begin(context: Context, choice: float) -> str:
    context.outages.begin("disk")
    context.platform.volume.fill()
    return "the disk is full"


def end(context: Context) -> None:
    context.platform.volume.free()
    context.outages.end("disk", GRACE)
