"""A kernel of another language: speaks our kernel protocol with the guest, and Jupyter's with a kernel that it starts.
For Java, and for JavaScript without a Jupyter kernel, it starts a kernel of our own.

    hello -> begin (starts the Jupyter kernel with that environment) -> execute ...
    The Jupyter kernel dies: the bridge exits too, and the guest reports it. The stream ends: the kernel is killed.
"""

import datetime
import os
import re
import select
import signal

from . import jupyter, languages, results, specs, wire
from .interrupts import Interrupts

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def serve(connection, language):
    spec = specs.resolve(language)
    bridge = Bridge(connection, spec)
    lines = bridge.lines
    problem = missing(spec, language)
    if problem:
        lines.send({"type": "failed", "message": problem})
        return 1
    lines.send({"type": "hello", "pid": os.getpid()})
    try:
        return bridge.serve()
    finally:
        bridge.stop()


def missing(spec, language):
    if spec is None:
        return "no Jupyter kernel for %r is installed in this template" % language
    if spec.starter is jupyter and not jupyter.is_available():
        return "the Python package jupyter_client is not installed in this template"
    return None


class Bridge:
    def __init__(self, connection, spec):
        self.lines = wire.Lines(connection, Interrupts(), on_gone=self.give_up)
        self.spec = spec
        self.kernel = None
        self.environment = {}
        self.executions = 0
        self.interrupted = False
        self.wake = self.catch_interrupts()

    def catch_interrupts(self):
        """Makes SIGINT readable: the loop below forwards it while a cell runs and drops it otherwise."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        return reader

    def serve(self):
        while True:
            request = self.lines.receive()
            if request is None:
                return 0
            if request.get("op") == "begin":
                self.environment = text_map(request.get("env"))
            elif request.get("op") == "execute":
                if not self.execute(str(request.get("code") or ""), text_map(request.get("env"))):
                    return 1

    def give_up(self):
        self.stop()
        os._exit(0)

    def stop(self):
        if self.kernel is not None:
            self.kernel.kill()

    def execute(self, code, environment):
        """Runs one cell. False if the Jupyter kernel has died, so that the bridge has to exit too."""
        try:
            self.ensure_started()
        except jupyter.StartError as problem:
            return self.fail(str(problem))
        self.drain_wake()
        self.interrupted = False
        try:
            self.run_silently(self.assign(environment, []))
            self.run_cell(code)
            self.run_silently(self.unassign(environment))
        except jupyter.Died:
            return self.restart_after_interrupt()
        self.lines.send({"type": "end_of_execution"})
        return True

    def ensure_started(self):
        if self.kernel is None:
            self.kernel = self.spec.starter.start(self.spec, self.environment)

    def fail(self, problem):
        self.executions += 1
        self.lines.send({"type": "number_of_executions", "execution_count": self.executions})
        self.lines.send(results.error("KernelStartError", problem, problem))
        self.lines.send({"type": "end_of_execution"})
        return True

    def assign(self, wanted, removed):
        return languages.assignments(self.spec.language, self.spec.name, wanted, removed)

    def unassign(self, environment):
        before = {name: self.environment[name] for name in environment if name in self.environment}
        return self.assign(before, [name for name in environment if name not in before])

    def run_silently(self, code):
        if code:
            for _ in self.kernel.run(code, silent=True, wake=self.wake, on_interrupt=self.drain_wake):
                pass

    def run_cell(self, code):
        self.executions += 1
        counted = False
        for kind, content in self.kernel.run(code, silent=False, wake=self.wake, on_interrupt=self.interrupt):
            if kind == "execute_input":
                self.executions = content.get("execution_count") or self.executions
            if not counted:
                counted = True
                self.lines.send({"type": "number_of_executions", "execution_count": self.executions})
            event = translate(kind, content)
            if event is not None:
                self.lines.send(event)

    def interrupt(self):
        self.drain_wake()
        self.interrupted = True
        self.kernel.interrupt()

    def restart_after_interrupt(self):
        """If an interrupt ended the kernel, the next cell starts a new one. The guest reports any other death."""
        if not self.interrupted:
            return False
        self.kernel.kill()
        self.kernel = None
        value = "the %s kernel cannot be interrupted: it was ended, and its state is lost" % self.spec.display
        self.lines.send(results.error("KeyboardInterrupt", value, value))
        self.lines.send({"type": "end_of_execution"})
        return True

    def drain_wake(self):
        while select.select([self.wake], [], [], 0)[0]:
            os.read(self.wake, 4096)


def translate(kind, content):
    """Converts a Jupyter message to an event, or to None if clients do not need it."""
    if kind == "stream":
        name = "stderr" if content.get("name") == "stderr" else "stdout"
        return {"type": name, "text": str(content.get("text", "")), "timestamp": now()}
    if kind in ("execute_result", "display_data"):
        return results.event(without_colours(content.get("data") or {}), kind == "execute_result")
    if kind == "error":
        traceback = "\n".join(str(line) for line in content.get("traceback") or [])
        return results.error(
            ANSI.sub("", str(content.get("ename", ""))),
            ANSI.sub("", str(content.get("evalue", ""))),
            ANSI.sub("", traceback),
        )
    return None


def without_colours(data):
    text = data.get("text/plain")
    if isinstance(text, str):
        return {**data, "text/plain": ANSI.sub("", text)}
    return data


def text_map(value):
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, dict) else {}


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()
