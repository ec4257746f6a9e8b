"""Pauses whose memory has gone to disk: the processes are gone meanwhile, and go on after it."""

import asyncio

from cases_pty import opened, size
from cases_snapshots import KEEPER, NODE, TRANSACTION, call_outside
from harness.cases import case
from kit import URL, fetch, go, unique, until
from on_disk import pause_to_disk


async def asked(sandbox, port):
    """What a server in the sandbox answers through the edge."""
    routed = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    status, _, body = await asyncio.to_thread(lambda: fetch(URL, headers=routed))
    return body.decode() if status == 200 else None


@case("pause", core=True)
async def servers_and_commands_go_on_after_their_memory_was_on_disk(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/tmp/keeper.py", KEEPER))
        await go(sandbox.commands.run("python3 /tmp/keeper.py", background=True, timeout=0))
        reader = await go(sandbox.commands.run("read x; echo got $x", background=True, stdin=True, timeout=0))
        number = await until(lambda: asked(sandbox, 8000))
        await pause_to_disk(sandbox)
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await until(lambda: asked(again, 8000)) == number
        process = await go(again.commands.connect(reader.pid))
        await go(again.commands.send_stdin(reader.pid, "it\n"))
        assert (await go(process.wait())).stdout == "got it\n"


@case("pause")
async def a_terminal_a_transaction_tmux_and_node_go_on_after_their_memory_was_on_disk(sdk):
    async with sdk.sandbox() as sandbox:
        terminal = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **o))
        pid = terminal.handle.pid
        await go(sandbox.pty.send_stdin(pid, b"KEPT=in-the-shell\necho be''fore\n"))
        await terminal.shows("before")
        await go(sandbox.files.write("/tmp/transaction.py", TRANSACTION))
        await go(sandbox.commands.run("python3 /tmp/transaction.py", background=True, timeout=0))
        await go(sandbox.commands.run(f'node -e "{NODE}"', background=True, timeout=0))
        await go(sandbox.commands.run("tmux new-session -d -s work && tmux send-keys -t work 'echo sho''wn; KEPT=in-tmux' Enter"))
        capture = "tmux capture-pane -p -t work"

        async def shows_it():
            return "shown" in (await go(sandbox.commands.run(capture))).stdout.split()

        await until(shows_it)
        await until(lambda: go(sandbox.files.exists("/tmp/begun")))
        assert await until(lambda: asked(sandbox, 3000)) == "1"
        await pause_to_disk(sandbox)

        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await until(lambda: asked(again, 3000)) == "2"
        if hasattr(again.pty, "connect"):
            joined = await opened(sdk, lambda **o: again.pty.connect(pid, **o))
            await go(again.pty.send_stdin(pid, b"echo [$KEPT]; stty size\n"))
            await joined.shows("[in-the-shell]")
            await joined.shows("24 80")
        # tmux keeps what it has shown.
        assert "shown" in (await go(again.commands.run(capture))).stdout.split()
        await go(again.commands.run("tmux send-keys -t work 'echo $KEPT > /tmp/kept' Enter; touch /tmp/commit"))
        await until(lambda: go(again.files.exists("/tmp/committed")))
        await until(lambda: go(again.files.exists("/tmp/kept")))
        assert await go(again.files.read("/tmp/kept")) == "in-tmux\n"
        rows = "python3 -c \"import sqlite3; print(list(sqlite3.connect('/home/user/t.db').execute('select * from numbers')))\""
        assert (await go(again.commands.run(rows))).stdout == "[(1,), (2,)]\n"


@case("session")
async def a_session_goes_on_after_its_memory_was_on_disk(sdk):
    metadata = {"isopod.session": unique("session")}
    async with sdk.sandbox(metadata=metadata) as sandbox:
        reader = await go(sandbox.commands.run("read x; echo got $x", background=True, stdin=True, timeout=0))
        await pause_to_disk(sandbox)
        same = await go(sdk.Sandbox.create(metadata=metadata, timeout=60))
        assert same.sandbox_id == sandbox.sandbox_id
        process = await go(same.commands.connect(reader.pid))
        await go(same.commands.send_stdin(reader.pid, "it\n"))
        assert (await go(process.wait())).stdout == "got it\n"


@case("auto-pause")
async def traffic_wakes_a_sandbox_whose_memory_is_on_disk(sdk):
    async with sdk.sandbox(timeout=120, lifecycle={"on_timeout": "pause", "auto_resume": True}) as sandbox:
        await go(sandbox.files.write("/tmp/keeper.py", KEEPER))
        # Without a stream: when one breaks, the asynchronous SDK asks whether the sandbox still runs, which wakes it.
        await go(sandbox.commands.run("setsid python3 /tmp/keeper.py > /tmp/keeper.log 2>&1 &"))
        number = await until(lambda: asked(sandbox, 8000))
        await pause_to_disk(sandbox)
        assert await until(lambda: asked(sandbox, 8000)) == number


@case("pause")
async def connections_to_the_outside_are_closed_after_memory_was_on_disk(sdk):
    async with sdk.sandbox() as sandbox:
        caller = await call_outside(sandbox)
        await pause_to_disk(sandbox)
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        ended = await go((await go(again.commands.connect(caller.pid))).wait())
        assert ended.stdout.startswith(("failed ", "read b''")), ended.stdout
