"""Several clients on one sandbox at once: one terminal, one process, and one directory that all of them see."""

import asyncio

import e2b
from cases_pty import opened
from cases_watch import saw, started
from e2b import FilesystemEventType as Kind
from harness.cases import case
from kit import go, has, until


async def others(sdk, sandbox, count):
    """More clients of the same sandbox, like programs of other users."""
    return [await go(sdk.Sandbox.connect(sandbox.sandbox_id)) for _ in range(count)]


@case("together")
async def two_clients_share_a_terminal(sdk):
    async with sdk.sandbox() as mine:
        (theirs,) = await others(sdk, mine, 1)
        size = has(e2b, "PtySize")(rows=24, cols=80)
        first = await opened(sdk, lambda **options: mine.pty.create(size, **options))
        second = await opened(sdk, lambda **options: theirs.pty.connect(first.handle.pid, **options))
        await go(mine.pty.send_stdin(first.handle.pid, b"echo from-$((1+1))-mine\n"))
        await go(theirs.pty.send_stdin(first.handle.pid, b"echo from-$((2+2))-theirs\n"))
        for terminal in (first, second):
            await terminal.shows("from-2-mine")
            await terminal.shows("from-4-theirs")
        await go(theirs.pty.kill(first.handle.pid))
        await asyncio.gather(first.ends(), second.ends())


@case("together")
async def one_client_ends_what_another_started(sdk):
    async with sdk.sandbox() as mine:
        (theirs,) = await others(sdk, mine, 1)
        process = await go(mine.commands.run("sleep 600", background=True))
        assert process.pid in [one.pid for one in await go(theirs.commands.list())]
        assert await go(theirs.commands.kill(process.pid))

        async def is_gone():
            return process.pid not in [one.pid for one in await go(mine.commands.list())]

        await until(is_gone)


@case("together")
async def all_who_watch_see_what_one_writes(sdk):
    async with sdk.sandbox() as mine:
        clients = [mine, *await others(sdk, mine, 2)]
        watches = [await started(sdk, client, "/home/user") for client in clients]
        await go(clients[1].files.write("/home/user/shared.txt", "by the second"))
        for events, _ in watches:
            await until(saw(events, "shared.txt", Kind.CREATE))
        assert [await go(client.files.read("/home/user/shared.txt")) for client in clients] == ["by the second"] * 3
        for _, stop in watches:
            await stop()
