"""Whether the memory of a paused sandbox is on disk. The server of this suite saves pauses after a second, if it can, and only its
records tell when it has."""

import contextlib
import json
import os
from pathlib import Path

from harness.cases import Absent
from kit import go, until


def records():
    for path in Path(os.environ["ISOPOD_SUITE_STATE"]).glob("homes/serve/boxes/*/record.json"):
        with contextlib.suppress(OSError, ValueError):
            yield json.loads(path.read_text())


def is_on_disk(id):
    named = lambda record: (record.get("spec") or {}).get("sandbox") == id and not record.get("snapshot")
    return any(named(record) and record["state"] == "saved" and not record["init"] for record in records())


async def pause_to_disk(sandbox):
    """Pauses a sandbox, and waits until its processes are gone."""
    if "ISOPOD_SUITE_STATE" not in os.environ:
        raise Absent("the server cannot save memory")
    pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
    await go(pause())
    await until(lambda: is_on_disk(sandbox.sandbox_id), seconds=60)
