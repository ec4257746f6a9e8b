"""Starts commands in the background, follows their output through every break, and compares it with what they print."""

import time
from functools import partial

from e2b import NotFoundException
from e2b.sandbox.commands.command_handle import CommandResult
from e2b_code_interpreter import Sandbox

from chaos import sdk
from chaos.checks import output as check
from chaos.clients.client import Client, Failed
from chaos.ledger import Life, Owned

# A burst, then silence long enough for a reader to leave without data in transit.
BURST, SILENCE = 20, 0.3
# The share of the streams that a pause breaks.
PAUSED = 0.3
RECONNECT_DEADLINE = 45.0
STREAM_DEADLINE = 120.0


class Output(Client):
    pause = 0.2

    def turn(self) -> None:
        candidates = self.context.ledger.alive()
        if not candidates:
            return
        sandbox = self.draw.choice(candidates)
        if self.draw.random() < PAUSED and sandbox.template == "base" and not sandbox.execution:
            # A pause breaks the calls of others, so no other client may use it.
            if sandbox.reserve():
                try:
                    self._follow(sandbox, is_paused=True)
                finally:
                    # The command may have ended just before it was paused.
                    self.resume(sandbox)
                    sandbox.release()
            return
        with sdk.using(sandbox) as can:
            if can:
                self._follow(sandbox)

    def _follow(self, sandbox: Owned, is_paused: bool = False) -> None:
        bursts = self.draw.randint(3, 20)
        lines = bursts * BURST
        # It leaves after this many bursts, like a client that closes its window.
        leave_after = self.draw.randint(1, bursts) if self.draw.random() < 0.4 and not is_paused else None
        pause_after = self.draw.randint(1, bursts) if is_paused else None
        opened = self.open(sandbox)
        run = partial(opened.commands.run, check.program(lines, BURST, SILENCE), background=True, timeout=STREAM_DEADLINE)
        handle = self.call(f"start of a command in {sandbox.id}", run, ("disk",), sandbox)
        heard, pid = check.Heard(), handle.pid
        breaks = 0
        while (result := self._listen(handle, heard, leave_after, sandbox, pause_after)) is None:
            leave_after = pause_after = None
            breaks += 1
            handle = self._reconnect(sandbox, pid, heard)
        self._judge(sandbox, heard, lines, breaks, result)

    def _listen(
        self, handle, heard: check.Heard, leave_after: int | None, sandbox: Owned, pause_after: int | None
    ) -> CommandResult | None:
        """Reads until its end, or until the stream breaks or is left. A pause of the sandbox breaks it."""
        try:
            for out, err, _ in handle:
                heard.add(out, err)
                if pause_after is not None and heard.is_complete_up_to(pause_after * BURST):
                    pause_after = None
                    self._pause(sandbox, heard)
                if leave_after is not None and heard.is_complete_up_to(leave_after * BURST):
                    heard.note("leave")
                    handle.disconnect()
                    return None
        except Exception as error:
            heard.note(f"broken by {error!r}")
            return None
        # `wait` would raise for a stream that ended without a result, which is a break like any other.
        return handle._result

    def _pause(self, sandbox: Owned, heard: check.Heard) -> None:
        """With its memory. Connecting again resumes it, whether this was acknowledged or not.

        A pause that was refused breaks no stream: what has arrived meanwhile must still be read.
        """
        pause = partial(Sandbox.pause, sandbox.id, keep_memory=True, request_timeout=sdk.REQUEST)
        try:
            self.call(f"pause of {sandbox.id}", pause, ("disk",), sandbox)
            self.context.ledger.count("streams that a pause broke")
            heard.note("paused")
        except Failed:
            heard.note("not paused")

    def _reconnect(self, sandbox: Owned, pid: int, heard: check.Heard):
        deadline = time.monotonic() + RECONNECT_DEADLINE
        while True:
            if sandbox.life is not Life.ALIVE:
                raise Failed
            try:
                opened = sdk.connect(sandbox.id)
                heard.note("join")
                return opened.commands.connect(pid, timeout=STREAM_DEADLINE)
            except Exception as error:
                heard.note(f"not joined: {error!r}")
                is_away = self.context.outages.is_away("server", "database", "disk")
                if is_away and self.context.stop.is_set():
                    raise Failed from error
                if is_away:
                    deadline = time.monotonic() + RECONNECT_DEADLINE
                elif time.monotonic() > deadline or (
                    isinstance(error, NotFoundException) and sandbox.life is Life.ALIVE and not is_away
                ):
                    self.context.violations.add(
                        "output", f"process {pid} in {sandbox.id} can be joined again", f"{error!r} after {heard.describe()}"
                    )
                    raise Failed from error
            time.sleep(0.1)

    def _judge(self, sandbox: Owned, heard: check.Heard, lines: int, breaks: int, result: CommandResult) -> None:
        self.context.ledger.count("commands followed to their end")
        self.context.ledger.count("streams joined again", breaks)
        self.context.ledger.count("lines of output", 2 * lines)
        wrong = heard.differences(lines)
        if wrong or result.exit_code != 0:
            expected = f"a command in {sandbox.id} gives {lines} lines on each stream without gap or repeat, and exit code 0"
            self.context.violations.add(
                "output", expected, f"{wrong or 'all lines'}, exit code {result.exit_code}, {breaks} breaks ({'; '.join(heard.story)})"
            )
