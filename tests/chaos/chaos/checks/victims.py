"""A sandbox whose guest was killed has ended, with a recorded reason."""

import time

from e2b import NotFoundException
from e2b_code_interpreter import Sandbox

from chaos import sdk
from chaos.context import Context
from chaos.ledger import Life, Owned

DEADLINE = 20.0


def check(context: Context) -> None:
    deadline = time.monotonic() + DEADLINE
    for sandbox in context.ledger.of_life(Life.VICTIM):
        while (wrong := _what_is_wrong(context, sandbox)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if wrong and context.outages.is_away("server", "database", "disk"):
            continue
        sandbox.life = Life.ENDED
        if wrong:
            context.violations.add(
                "victims", f"{sandbox.id}, whose guest was killed, has ended with a reason after {DEADLINE:.0f} s", wrong
            )
        else:
            context.ledger.count("victims that ended with a reason")


def _what_is_wrong(context: Context, sandbox: Owned) -> str | None:
    try:
        told = Sandbox.get_info(sandbox.id, request_timeout=sdk.REQUEST)
        return f"it is {told.state}"
    except NotFoundException:
        pass
    except Exception as error:
        return repr(error)
    # It may have been killed before its create was acknowledged. Then no record is needed.
    if sandbox.template == "unknown" or context.platform.database.end_reason(sandbox.id):
        return None
    return "it is gone, and there is no reason"
