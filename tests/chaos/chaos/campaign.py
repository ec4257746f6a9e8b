"""The loop: clients work, a step of the schedule strikes, the server is restarted, guarantees are checked."""

import random
import time

from chaos import sdk
from chaos.checks import bucket, files, residue, sandboxes, victims
from chaos.checks.eventually import eventually
from chaos.checks.parts import Parts
from chaos.clients.client import Client
from chaos.clients.code import Code
from chaos.clients.files import Files
from chaos.clients.fleet import Fleet
from chaos.clients.output import Output
from chaos.clients.sessions import Sessions
from chaos.context import Context
from chaos.faults import KILLS, apply
from chaos.ledger import Life
from chaos.options import Options
from chaos.schedule import Step, steps
from chaos.server import LISTEN_DEADLINE

# All files are compared at this interval of steps, and a sample in the others.
DEEP_EVERY = 10
# How long a server that cannot start because of a lasting fault may take before the next step.
PATIENCE_IN_A_FAULT = 1.5
CLIENT_DEADLINE = 150.0
FIRST_SANDBOXES = 60.0


class Campaign:
    def __init__(self, context: Context, options: Options) -> None:
        self.context, self.options = context, options
        self.struck: dict[str, int] = {}
        self.steps = 0
        self.ended_because = ""
        self.seconds = 0.0
        self.slowest_start = 0.0
        # Without a server, the run cannot continue.
        self.has_lost_the_server = False
        self._parts = Parts()
        self._draw = random.Random(f"checks/{context.seed}")
        self._clients: list[Client] = [
            Fleet(context, "fleet"),
            Files(context, "files-a"),
            Files(context, "files-b"),
            Output(context, "output-a"),
            Output(context, "output-b"),
            Output(context, "output-c"),
            Code(context, "code"),
            Sessions(context, "sessions"),
        ]

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.struck.items() if name in KILLS)

    def run(self) -> None:
        for client in self._clients:
            client.start()
        eventually(FIRST_SANDBOXES, lambda: len(self.context.ledger.alive()) >= 5)
        start = time.monotonic()
        for step in steps(self.context.seed, self.options.faults):
            self.seconds = time.monotonic() - start
            self.ended_because = self._why_it_is_over()
            if self.ended_because:
                break
            self._take(step)
        self._finish()

    def _why_it_is_over(self) -> str:
        """Empty while the run continues."""
        if self.has_lost_the_server:
            return "early, because the server could not be started any more"
        if self.context.violations.is_too_many():
            return "early, because of too many violations"
        if self.options.kills is not None and self.kills >= self.options.kills:
            return f"after {self.options.kills} kills"
        return f"after {self.options.minutes:g} minutes" if self.seconds >= self.options.minutes * 60 else ""

    def _take(self, step: Step) -> None:
        self.steps = step.number
        self.context.violations.enter(step.number, step.describe())
        time.sleep(step.pause)
        hit = [self._strike(strike.fault, strike.choice) for strike in step.strikes]
        for fault in step.ends:
            apply.end(self.context, fault)
        happened = [*filter(None, hit), *[f"end of {name}" for name in step.ends]]
        print(f"step {step.number} at {self.seconds:.0f}s: {'; '.join(happened) or 'nobody there'}")
        self._recover()
        self._check(is_deep=step.number % DEEP_EVERY == 0 or bool(step.ends))

    def _strike(self, fault: str, choice: float) -> str | None:
        hit = apply.strike(self.context, fault, choice)
        if hit is not None:
            self._parts.was_killed(fault)
            self.struck[fault] = self.struck.get(fault, 0) + 1
        return hit

    def _recover(self) -> None:
        """Restarts the server, as a service manager would."""
        server = self.context.platform.server
        is_known_to_be_away = self.context.outages.is_away("server")
        if not server.has_ended() and not is_known_to_be_away:
            return
        if not is_known_to_be_away:
            self.context.violations.add("server", "the server runs until it is killed", f"{server.describe()}:\n{server.tail(5)}")
            self.context.outages.begin("server")
        can_start = not self.context.outages.is_away("database", "disk")
        start = time.monotonic()
        deadline = start + (LISTEN_DEADLINE if can_start else PATIENCE_IN_A_FAULT)
        while time.monotonic() < deadline:
            if server.has_ended():
                server.launch()
            if server.wait_until_it_listens(deadline - time.monotonic()):
                self.slowest_start = max(self.slowest_start, time.monotonic() - start)
                return
            time.sleep(0.2)
        if can_start:
            self.has_lost_the_server = True
            self.context.violations.add(
                "server", f"a new server listens within {LISTEN_DEADLINE:.0f} s", f"it does not:\n{server.tail(5)}"
            )

    def _check(self, is_deep: bool) -> None:
        if self.context.outages.is_away("server", "disk", "database"):
            return
        sandboxes.check(self.context)
        victims.check(self.context)
        self._parts.check(self.context)
        if is_deep:
            files.everything(self.context)
        else:
            files.sample(self.context, self._draw)

    def _finish(self) -> None:
        """Ends all faults, then compares, ends and removes everything that was acknowledged."""
        self.context.violations.enter(self.steps, "after the last step")
        self.context.platform.end_lasting_faults()
        time.sleep(1)
        phases = [
            ("start the server", self._recover),
            ("wait for the clients", self._join_clients),
            ("wait until everything is back", self._wait_until_all_is_back),
            ("check sandboxes and files", lambda: self._check(is_deep=True)),
            ("look for the parts", lambda: self._parts.check_at_the_end(self.context)),
            ("compare the bucket", lambda: bucket.check(self.context)),
            ("end all sandboxes", self._end_all),
            ("look for what is left of them", lambda: residue.check_ended_sandboxes(self.context)),
        ]
        for name, phase in phases:
            if self.has_lost_the_server and phase != self._join_clients:
                continue
            start = time.monotonic()
            phase()
            print(f"{name}: {time.monotonic() - start:.1f} s")

    def _wait_until_all_is_back(self) -> None:
        eventually(30, lambda: not self.context.outages.is_away("server", "disk", "database", "store", "mounts"), 0.2)
        self._recover()

    def _join_clients(self) -> None:
        self.context.stop.set()
        deadline = time.monotonic() + CLIENT_DEADLINE
        for client in self._clients:
            client.join(max(0.0, deadline - time.monotonic()))
            if client.is_alive():
                self.context.violations.add(
                    "calls", f"every call of {client.name} ends", f"it did not within {CLIENT_DEADLINE:.0f} s"
                )

    def _end_all(self) -> None:
        for life in (Life.ALIVE, Life.ENDING, Life.LOST):
            for sandbox in self.context.ledger.of_life(life):
                try:
                    sdk.kill(sandbox.id)
                    sandbox.life = Life.ENDED
                except Exception as error:
                    self.context.violations.add("sandboxes", f"{sandbox.id} can be ended", repr(error))
        for one in sdk.listed():
            sdk.kill(one.sandbox_id)
