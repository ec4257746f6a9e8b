"""The few calls of the official SDK that clients and checks make, with timeouts everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2b import SandboxQuery, SandboxState
from e2b_code_interpreter import Sandbox

from chaos.ledger import Owned

REQUEST = 40.0
# Long enough that it does not expire in a run.
LIFETIME = 3600
MARK = "chaos"


def create(template: str, mark: str, **metadata: str) -> Sandbox:
    return Sandbox.create(template, timeout=LIFETIME, metadata={MARK: mark} | metadata, request_timeout=REQUEST)


def connect(sandbox_id: str) -> Sandbox:
    """Also resumes a paused one."""
    return Sandbox.connect(sandbox_id, timeout=LIFETIME, request_timeout=REQUEST)


def kill(sandbox_id: str) -> bool:
    return Sandbox.kill(sandbox_id, request_timeout=REQUEST)


def listed(metadata: dict[str, str] | None = None) -> list:
    """Returns all running and paused sandboxes of the team."""
    query = SandboxQuery(metadata=metadata, state=[SandboxState.RUNNING, SandboxState.PAUSED])
    pages = Sandbox.list(query=query, request_timeout=REQUEST)
    found = []
    while pages.has_next:
        found += pages.next_items()
    return found


@contextmanager
def using(sandbox: Owned) -> Iterator[bool]:
    """Whether it can be used now. No other client pauses or ends it meanwhile."""
    entered = sandbox.enter()
    try:
        yield entered
    finally:
        if entered:
            sandbox.leave()
