"""A sandbox that ends while its client waits: every version of the SDK checks that, and says so in its own words."""

import asyncio
import io

import e2b
import httpx
from cases_files import parts
from cases_pty import size
from harness.cases import case
from kit import exception, go, raises, until

WORDS = "killed or reached its end of life"


@case("errors")
async def a_sandbox_killed_under_a_command_ends_it_with_not_running(sdk):
    kind = exception("SandboxNotRunningException")
    sandbox = await go(sdk.Sandbox.create())
    handle = await go(sandbox.commands.run("sleep 60", background=True))
    await go(sandbox.kill())
    async with raises(kind):
        await go(handle.wait())


@case("errors", core=True)
async def a_sandbox_killed_under_a_command_is_told_in_the_sdks_own_words(sdk):
    for end in (lambda sandbox: sandbox.kill(), lambda sandbox: sandbox.set_timeout(0)):
        sandbox = await go(sdk.Sandbox.create())
        output = []
        of_run, of_wait = ({"on_stdout": output.append}, {}) if sdk.name == "async" else ({}, {"on_stdout": output.append})
        command = "echo up; touch /tmp/up; sleep 60"
        handle = await go(sandbox.commands.run(command, background=True, **of_run))
        await until(lambda: sandbox.files.exists("/tmp/up"), every=0.02)
        # The way of the output to this client is not the one of this answer.
        await asyncio.sleep(0.3)
        await go(end(sandbox))
        async with raises(e2b.TimeoutException) as seen:
            await go(handle.wait(**of_wait))
        assert WORDS in str(seen.error), repr(seen.error)
        assert output == ["up\n"], "what was printed before is not lost"


@case("errors", core=True)
async def a_sandbox_killed_under_a_terminal_is_told_too(sdk):
    sandbox = await go(sdk.Sandbox.create())
    options = {"on_data": lambda _: None} if sdk.name == "async" else {}
    handle = await go(sandbox.pty.create(size=size(24, 80), **options))
    await go(sandbox.kill())
    async with raises(e2b.TimeoutException) as seen:
        await go(handle.wait())
    assert WORDS in str(seen.error), repr(seen.error)


@case("errors", core=True)
async def a_sandbox_killed_under_a_download_never_gives_a_short_file(sdk):
    """No version checks on the sandbox once a stream has begun: the transport's own error comes through, and the next call says why."""
    sandbox = await go(sdk.Sandbox.create())
    await go(sandbox.commands.run("truncate -s 1G big"))
    stream = await go(sandbox.files.read("big", format="stream"))
    received = 0
    async with raises(e2b.SandboxException, httpx.TransportError):
        async for part in parts(stream):
            if received == 0:
                await go(sandbox.kill())
            received += len(part)
    assert 0 < received < 1 << 30
    async with raises(e2b.TimeoutException) as seen:
        await go(sandbox.files.read("big", format="stream"))
    assert "The sandbox was not found" in str(seen.error), repr(seen.error)


@case("errors", core=True)
async def a_sandbox_killed_under_an_upload_is_told_in_the_sdks_own_words(sdk):
    sandbox = await go(sdk.Sandbox.create())
    async with raises(e2b.TimeoutException) as seen:
        await go(sandbox.files.write("big", KillsWhileRead(sandbox.sandbox_id)))
    assert WORDS in str(seen.error) or "The sandbox was not found" in str(seen.error), repr(seen.error)


class KillsWhileRead(io.RawIOBase):
    """A file of which a part is uploaded when its sandbox ends. Older versions read all of it before they send."""

    SIZE, KILLED_AT = 32 << 20, 8 << 20

    def __init__(self, sandbox):
        self.sandbox, self.given = sandbox, 0

    def readable(self):
        return True

    def readinto(self, buffer):
        length = min(len(buffer), self.SIZE - self.given)
        if self.given < self.KILLED_AT <= self.given + length:
            e2b.Sandbox.kill(self.sandbox)
        buffer[:length] = bytes(length)
        self.given += length
        return length


@case("errors", core=True, only="async")
async def a_sandbox_killed_under_a_watch_is_told_too(sdk):
    sandbox = await sdk.Sandbox.create()
    ended = []
    await sandbox.files.watch_dir("/tmp", lambda _: None, on_exit=ended.append, timeout=0)
    await sandbox.kill()
    await until(lambda: ended)
    assert isinstance(ended[0], e2b.TimeoutException) and WORDS in str(ended[0]), repr(ended[0])


@case("errors", core=True, only="sync")
async def a_watch_of_a_killed_sandbox_says_so_when_it_is_asked(sdk):
    sandbox = sdk.Sandbox.create()
    handle = sandbox.files.watch_dir("/tmp")
    sandbox.kill()
    async with raises(e2b.TimeoutException) as seen:
        handle.get_new_events()
    assert "not found" in str(seen.error), repr(seen.error)
