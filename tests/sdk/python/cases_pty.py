"""Terminals. The sync SDK iterates over output, the async one uses callbacks. Both return bytes."""

import asyncio
import threading

import e2b
from harness.cases import case
from kit import exception, go, has, raises, until


class Terminal:
    """A terminal whose output is collected as it arrives."""

    def __init__(self, handle, output):
        self.handle, self.output, self.result = handle, output, None

    def text(self):
        return b"".join(self.output).decode(errors="replace")

    async def shows(self, text):
        try:
            await until(lambda: text in self.text(), seconds=15)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.text()[-500:]!r} has no {text!r}") from None

    async def ends(self):
        await until(lambda: self.result is not None, seconds=15)
        return self.result


async def opened(sdk, start):
    """A terminal of `start`, which takes `on_data` in the async SDK and nothing in the sync one."""
    output = []
    if sdk.name == "async":
        terminal = Terminal(await start(on_data=output.append), output)

        async def wait():
            try:
                terminal.result = (await terminal.handle.wait()).exit_code
            except e2b.CommandExitException as error:
                terminal.result = error.exit_code
            except Exception:
                terminal.result = -1000

        terminal.task = asyncio.create_task(wait())
        return terminal
    terminal = Terminal(start(), output)

    def gather():
        try:
            terminal.result = terminal.handle.wait(on_pty=output.append).exit_code
        except e2b.CommandExitException as error:
            terminal.result = error.exit_code
        except Exception:
            terminal.result = -1000

    threading.Thread(target=gather, daemon=True).start()
    return terminal


def size(rows, cols):
    from e2b.sandbox.commands.command_handle import PtySize

    return PtySize(rows=rows, cols=cols)


@case("pty", core=True)
async def a_terminal_takes_input_and_ends_with_its_shell(sdk):
    async with sdk.sandbox() as sandbox:
        options = {"envs": {"MARK": "abc"}, "cwd": "/tmp"}
        terminal = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **options, **o))
        send = lambda text: go(sandbox.pty.send_stdin(terminal.handle.pid, text.encode()))
        await send("echo [$MARK$TERM]; tty; pwd; stty size\n")
        await terminal.shows("[abcxterm-256color]")
        await terminal.shows("/dev/pts/")
        await terminal.shows("/tmp")
        await terminal.shows("24 80")
        await send("exit 5\n")
        assert await terminal.ends() == 5


@case("pty")
async def a_resize_reaches_the_program(sdk):
    async with sdk.sandbox() as sandbox:
        terminal = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **o))
        send = lambda text: go(sandbox.pty.send_stdin(terminal.handle.pid, text.encode()))
        # In quotes, because the terminal also shows what is typed.
        await send("trap \"echo chan''ged\" WINCH; echo rea''dy\n")
        await terminal.shows("ready")
        await go(sandbox.pty.resize(terminal.handle.pid, size(40, 132)))
        await send("\n")
        await terminal.shows("changed")
        await send("stty size\n")
        await terminal.shows("40 132")
        await go(sandbox.pty.kill(terminal.handle.pid))


@case("pty")
async def a_killed_terminal_is_gone(sdk):
    async with sdk.sandbox() as sandbox:
        terminal = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **o))
        pid = terminal.handle.pid
        # What the shell runs has a process group of its own.
        job = "sh -c 'trap \"\" HUP; sleep 300 & echo $$ $! > /tmp/new; mv /tmp/new /tmp/job; wait'\n"
        await go(sandbox.pty.send_stdin(pid, job.encode()))
        await until(lambda: sandbox.files.exists("/tmp/job"))
        children = (await go(sandbox.files.read("/tmp/job"))).split()
        assert pid in [p.pid for p in await go(sandbox.commands.list())]
        assert await go(sandbox.pty.kill(pid)) is True
        for gone in [pid, *children]:
            assert await go(sandbox.files.exists(f"/proc/{gone}/stat")) is False, (gone, pid, children)
        assert await terminal.ends() != 0
        assert await go(sandbox.pty.kill(pid)) is False
        async with raises(exception("NotFoundException")):
            await go(sandbox.pty.send_stdin(pid, b"x"))


@case("pty")
async def control_c_interrupts(sdk):
    async with sdk.sandbox() as sandbox:
        terminal = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **o))
        send = lambda text: go(sandbox.pty.send_stdin(terminal.handle.pid, text.encode()))
        await send("sleep 4712 && echo no\n")

        async def is_in_front():
            # The plus shows that it is in the foreground of its terminal. Before that, the shell might take the key.
            found = await go(sandbox.commands.run("ps -eo stat,args | grep 'sleep 471[2]' || true"))
            return "+" in found.stdout

        await until(is_in_front)
        await send("\x03")
        await terminal.shows("^C")
        await send("echo aft''er $?\n")
        await terminal.shows("after 130")
        await go(terminal.handle.kill())


@case("pty")
async def a_terminal_is_found_again_by_pid(sdk):
    async with sdk.sandbox() as sandbox:
        connect = has(sandbox.pty, "connect")
        first = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **o))
        pid = first.handle.pid
        await go(sandbox.pty.send_stdin(pid, b"export KEPT=yes; echo rea''dy\n"))
        await first.shows("ready")
        if sdk.name == "async":
            await first.handle.disconnect()
        second = await opened(sdk, lambda **o: connect(pid, **o))
        await go(sandbox.pty.send_stdin(pid, b"echo kept=$KEPT\n"))
        await second.shows("kept=yes")
        await go(sandbox.pty.kill(pid))


@case("pty")
async def streamed_input_reaches_a_terminal(sdk):
    async with sdk.sandbox() as sandbox:
        stream = has(sandbox.pty, "stream_input")
        terminal = await opened(sdk, lambda **o: sandbox.pty.create(size=size(24, 80), **o))
        lines = ["A=1\n", "B=2\n", "echo sum=$((A+B))\n"]
        if sdk.name == "async":
            given = stream(terminal.handle.pid)
            for line in lines:
                await given.send(line)
            await given.close()
        else:
            stream(terminal.handle.pid, iter(lines))
        await terminal.shows("sum=3")
        await go(sandbox.pty.kill(terminal.handle.pid))
