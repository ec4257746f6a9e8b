"""Pauses whose memory goes to disk."""

from harness.cases import Absent
from harness.records import can_save_memory, is_on_disk
from kit import go, until


async def pause_to_disk(sandbox):
    """Pauses a sandbox, and waits until its processes are gone."""
    if not can_save_memory():
        raise Absent("the server cannot save memory")
    pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
    await go(pause())
    await until(lambda: is_on_disk(sandbox.sandbox_id), seconds=60)
