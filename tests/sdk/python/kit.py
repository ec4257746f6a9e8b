"""Shared by the Python cases. A case is written once, for the sync and the async SDK: `go` awaits if necessary."""

import asyncio
import contextlib
import inspect
import os
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import e2b
from harness.cases import Absent

URL = os.environ["E2B_SANDBOX_URL"]


async def go(value):
    """Returns the value, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


class Flavour:
    """The sync or the async SDK."""

    def __init__(self, name):
        self.name = name
        self.Sandbox = e2b.AsyncSandbox if name == "async" else e2b.Sandbox

    @contextlib.asynccontextmanager
    async def sandbox(self, *args, **options):
        """A sandbox for the duration of a block."""
        options.setdefault("timeout", 120)
        sandbox = await go(self.Sandbox.create(*args, **options))
        try:
            yield sandbox
        finally:
            await go(self.Sandbox.kill(sandbox.sandbox_id))

    async def together(self, calls):
        """Returns the results of concurrent calls."""
        if self.name == "async":
            return await asyncio.gather(*(call() for call in calls))
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: call(), calls))


async def pages(paginator):
    """All items of a paginator, page by page."""
    found = []
    while True:
        found.append(await go(paginator.next_items()))
        if not paginator.has_next:
            return found


async def until(condition, seconds=20, every=0.1):
    """Waits until the condition returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = await go(condition())
        if value:
            return value
        assert time.monotonic() < deadline, f"it did not come true in {seconds} s"
        await asyncio.sleep(every)


@contextlib.asynccontextmanager
async def raises(*kinds):
    """The block must raise one of these exceptions, available as `seen.error`."""

    class Seen:
        error = None

    seen = Seen()
    try:
        yield seen
    except kinds as error:
        seen.error = error
    else:
        raise AssertionError(f"nothing was raised, expected {[kind.__name__ for kind in kinds]}")


def has(owner, name):
    """Returns the attribute, or skips the case for this version."""
    if not hasattr(owner, name):
        raise Absent(f"no {name}")
    return getattr(owner, name)


def takes(function, name):
    """The function must have the option, otherwise the case is skipped for this version."""
    if name not in inspect.signature(function).parameters:
        raise Absent(f"no option {name}")


def exception(name):
    return has(e2b, name)


def unique(prefix="case"):
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def fetch(url, method="GET", data=None, headers=None):
    """Status, headers and body of a plain request, without any SDK."""
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def multipart(content):
    """Body and headers of an upload form with one file."""
    body = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + content + b"\r\n--xyz--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=xyz"}
