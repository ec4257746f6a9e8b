"""Every acknowledged write reads back byte by byte. A write without a response happened completely or not at all."""

import random
import time

from e2b.exceptions import FileNotFoundException
from e2b_code_interpreter import Sandbox

from chaos import sdk
from chaos.context import Context
from chaos.ledger import File, Life, Owned

DEADLINE = 45.0
LOCK_DEADLINE = 5.0
# How long after an aborted upload its data is removed.
UNDO_DEADLINE = 3.0


def sample(context: Context, draw: random.Random) -> None:
    """A file of each sandbox."""
    # Shared by all: if a file cannot be read, others wait no longer.
    deadline = time.monotonic() + DEADLINE
    for sandbox in context.ledger.alive():
        files = list(sandbox.files.values())
        if files:
            _read(context, sandbox, [draw.choice(files)], deadline)


def everything(context: Context) -> None:
    # Shared by all: if a file cannot be read, others wait no longer.
    deadline = time.monotonic() + DEADLINE
    for sandbox in context.ledger.alive():
        _read(context, sandbox, list(sandbox.files.values()), deadline)


def _read(context: Context, sandbox: Owned, files: list[File], deadline: float) -> None:
    with sdk.using(sandbox) as can:
        if not can or not files:
            return
        try:
            opened = sdk.connect(sandbox.id)
        except Exception:
            # The check of sandboxes reports that.
            return
        for file in files:
            # A read that waits for the store would delay the schedule.
            if not (file.in_workspace and context.outages.is_away("store", "mounts")):
                compare(context, sandbox, opened, file, deadline)


def compare(context: Context, sandbox: Owned, opened: Sandbox, file: File, deadline: float) -> None:
    """Reads one file, with retries for a while, and returns what is wrong with it."""
    # The client of a hanging write reports it, and it must not delay the checks.
    if not file.lock.acquire(timeout=LOCK_DEADLINE):
        return
    try:
        if sandbox.files.get(file.path) is file:
            _compare(context, sandbox, opened, file, deadline)
    finally:
        file.lock.release()


def _compare(context: Context, sandbox: Owned, opened: Sandbox, file: File, deadline: float) -> None:
    while sandbox.life is Life.ALIVE and not context.violations.is_too_many():
        start = time.monotonic()
        try:
            data = bytes(opened.files.read(file.path, format="bytes", request_timeout=sdk.REQUEST))
        except FileNotFoundException:
            data = None
        except Exception as error:
            if _has_excuse(context, file, start):
                return
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            context.violations.add("files", f"{file.path} in {sandbox.id} can be read", repr(error))
            del sandbox.files[file.path]
            return
        context.ledger.count("files compared")
        wrong = file.difference(data)
        if wrong and file.pending and time.monotonic() < file.broke_off_at + UNDO_DEADLINE:
            time.sleep(0.2)
            continue
        # A sandbox that has just died has no files, which is no violation.
        if wrong and sandbox.life is Life.ALIVE and not _has_excuse(context, file, start):
            expected, found = wrong
            context.violations.add("files", f"{file.path} in {sandbox.id} {expected}", found)
            del sandbox.files[file.path]
        return


def _has_excuse(context: Context, file: File, start: float) -> bool:
    kinds = ("server", "database", "disk") + (("store", "mounts") if file.in_workspace else ())
    return context.outages.excuses(start, *kinds)
