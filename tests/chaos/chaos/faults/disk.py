"""The disk under the state directory is full. Writes fail; what was acknowledged stays."""

from chaos.context import Context

# Who was stopped by the full disk is told a moment later.
GRACE = 5.0


def begin(context: Context, choice: float) -> str:
    context.outages.begin("disk")
    context.platform.volume.fill()
    return "the disk is full"


def end(context: Context) -> None:
    context.platform.volume.free()
    context.outages.end("disk", GRACE)
