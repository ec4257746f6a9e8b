"""Every sandbox whose create was acknowledged exists and works until it is ended. Ended ones stay ended."""

import time
from concurrent.futures import ThreadPoolExecutor

from e2b import NotFoundException

from chaos import sdk
from chaos.context import Context
from chaos.ledger import Life, Owned

DEADLINE = 30.0
# A create whose client left runs to its end, and is then undone.
STRAY_DEADLINE = 20.0
AT_ONCE = 4


def check(context: Context) -> None:
    alive, ended = context.ledger.alive(), context.ledger.of_life(Life.ENDED)
    start, listed = time.monotonic(), _list(context)
    if listed is None:
        return
    ids = {one.sandbox_id for one in listed}
    for one in ended:
        if one.id in ids:
            context.violations.add("sandboxes", f"{one.id}, whose end was acknowledged, stays ended", "it is listed")
            one.life = Life.ENDING
    for one in alive:
        if one.id not in ids and one.life is Life.ALIVE:
            _missing(context, one, "it is not listed")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda one: _probe(context, one), alive))
    _end_strays(context, listed, start)


def _list(context: Context) -> list | None:
    deadline = time.monotonic() + DEADLINE
    while True:
        start = time.monotonic()
        try:
            return sdk.listed()
        except Exception as error:
            if context.outages.excuses(start, "server", "database", "disk"):
                return None
            if time.monotonic() > deadline:
                context.violations.add("sandboxes", f"the server lists sandboxes within {DEADLINE:.0f} s", repr(error))
                return None
        time.sleep(0.2)


def _probe(context: Context, sandbox: Owned) -> None:
    """Whether a command runs in it."""
    with sdk.using(sandbox) as can:
        if not can:
            return
        deadline = time.monotonic() + DEADLINE
        while sandbox.life is Life.ALIVE:
            start = time.monotonic()
            try:
                done = sdk.connect(sandbox.id).commands.run("echo here", timeout=20)
                context.ledger.count("sandboxes probed")
                if done.stdout != "here\n":
                    context.violations.add("sandboxes", f"`echo here` in {sandbox.id} prints it", repr(done.stdout))
                return
            except Exception as error:
                if context.outages.excuses(start, "server", "database", "disk"):
                    return
                if isinstance(error, NotFoundException) or time.monotonic() > deadline:
                    _missing(context, sandbox, repr(error))
                    return
            time.sleep(0.2)


def _missing(context: Context, sandbox: Owned, found: str) -> None:
    # A guest that was killed just now will be in the ledger in a moment.
    time.sleep(0.3)
    if sandbox.life is Life.ALIVE:
        sandbox.life = Life.LOST
        reason = context.platform.database.end_reason(sandbox.id)
        context.violations.add(
            "sandboxes",
            f"{sandbox.id} ({sandbox.template}), whose create was acknowledged, is there and runs commands",
            f"{found}; the reason in the records is {reason}",
        )


def _end_strays(context: Context, listed: list, listed_at: float) -> None:
    """Removes what creates without a response have left. A running server does that itself if the client has left."""
    for one in listed:
        mark = (one.metadata or {}).get(sdk.MARK)
        if not mark or context.ledger.get(one.sandbox_id) is not None:
            continue
        left_at = context.ledger.abandoned_at(mark)
        if left_at is not None and not context.outages.excuses(left_at, "server", "database", "disk"):
            if listed_at < left_at + STRAY_DEADLINE:
                continue
            context.violations.add(
                "sandboxes",
                f"{one.sandbox_id}, whose client left before the answer, is gone {STRAY_DEADLINE:.0f} s later",
                "it is listed",
            )
        if left_at is not None or context.ledger.is_unanswered(mark):
            context.ledger.count("sandboxes of creates without an answer")
            context.ledger.add(Owned(one.sandbox_id, "stray", life=Life.ENDING))
