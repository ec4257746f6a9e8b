"""Plays the guest: a forkserver on a real socket, kernels with their stream and two pipes."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import unittest

DRIVER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "run.py")
# Only for tests that hang; no test asserts a duration.
TIMEOUT = 120
# The guest does this after an interrupt.
NUDGE_SECONDS = 0.2


class Forkserver:
    """A forkserver process and its messages."""

    def __init__(self, warm="shell", python=sys.executable):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT)
        command = [python, "-s", DRIVER, "mother", "--fd", str(theirs.fileno()), "--warm", warm]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.ready = self.receive()

    def receive(self):
        return json.loads(self.socket.recv(65536))

    def start(self, context="c", cwd="/tmp", env=None, begin=True):
        return Kernel.start(self, context, cwd, env or {}, begin)

    def close(self):
        self.socket.close()
        self.process.wait(TIMEOUT)


class Stream:
    """The guest's end of a kernel stream, with a deadline."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.settimeout(TIMEOUT)
        self.buffer = b""

    def send(self, message):
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self):
        """The next message, or None at the end."""
        while b"\n" not in self.buffer:
            try:
                chunk = self.connection.recv(1 << 20)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        # NaN is not valid JSON, so it is an error here.
        return json.loads(line, parse_constant=lambda name: 1 / 0)


class Kernel:
    def __init__(self):
        ours, theirs = socket.socketpair()
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        self.stream = Stream(ours)
        # The kernel's ends, until they are sent.
        self.ends = [theirs.detach(), out, err]

    @staticmethod
    def start(forkserver, context, cwd, env, begin):
        kernel = Kernel()
        message = {"op": "start", "context": context, "cwd": cwd, "env": env}
        send_ends(forkserver.socket, json.dumps(message).encode(), [kernel])
        kernel.started = forkserver.receive()
        kernel.hello = kernel.stream.receive()
        if begin:
            kernel.begin(env)
        return kernel

    def fork(self, count=1):
        """Copies of this kernel; `hello` is their first message."""
        copies = [Kernel() for _ in range(count)]
        message = {"op": "fork", "seeds": [os.urandom(32).hex() for _ in copies]}
        send_ends(self.stream.connection, json.dumps(message).encode() + b"\n", copies)
        for copy in copies:
            copy.hello = copy.stream.receive()
        return copies

    @property
    def pid(self):
        return self.hello["pid"]

    def begin(self, env=None, seed="0123456789abcdef"):
        usual = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        self.stream.send({"op": "begin", "env": {**usual, **(env or {})}, "seed": seed})

    def run(self, code, env=None):
        self.send(code, env)
        return self.finish()

    def send(self, code, env=None):
        self.interrupted = False
        self.stream.send({"op": "execute", "code": code, "env": env})

    def finish(self):
        """Everything up to the end of the cell, in the order in which the guest would forward it."""
        cell = Cell()
        with selectors.DefaultSelector() as selector:
            for source in (self.stdout, self.stderr, self.stream.connection):
                selector.register(source, selectors.EVENT_READ)
            while not cell.ended:
                if b"\n" not in self.stream.buffer:
                    self.wait(selector)
                ready = b"\n" in self.stream.buffer or self.stream.connection in (
                    key.fileobj for key, _ in selector.select(0)
                )
                event = self.stream.receive() if ready else None
                # Empty the pipes before a line is forwarded, to keep the order. Nothing is printed before the first line.
                if not event or event["type"] != "number_of_executions":
                    self.drain(cell, selector)
                if ready:
                    cell.take(event)
        return cell

    def wait(self, selector):
        if self.interrupted and not selector.select(NUDGE_SECONDS):
            os.kill(self.pid, signal.SIGURG)
        if not selector.select(TIMEOUT):
            raise AssertionError("the kernel says nothing")

    def drain(self, cell, selector):
        while True:
            ready = {key.fileobj for key, _ in selector.select(0)} & {self.stdout, self.stderr}
            if not ready:
                return
            for source in sorted(ready):
                data = os.read(source, 1 << 20)
                if not data:
                    selector.unregister(source)
                    continue
                cell.printed("stdout" if source == self.stdout else "stderr", data)

    def interrupt(self):
        self.interrupted = True
        os.kill(self.pid, signal.SIGINT)

    def close(self):
        self.stream.connection.close()
        os.close(self.stdout)
        os.close(self.stderr)


def send_ends(connection, message, kernels):
    """Sends a message with the kernels' ends of their streams and pipes."""
    ends = [end for kernel in kernels for end in kernel.ends]
    socket.send_fds(connection, [message], ends)
    for end in ends:
        os.close(end)


class Cell:
    """The events and output of one cell."""

    def __init__(self):
        self.events = []
        self.written = {"stdout": bytearray(), "stderr": bytearray()}
        self.order = []
        self.ended = False

    def printed(self, name, data):
        self.written[name] += data
        if not self.order or self.order[-1] != name:
            self.order.append(name)

    def take(self, event):
        if event is None:
            self.ended = True
            self.order.append("gone")
            return
        if not event:
            # An empty event; the guest drops it too.
            return
        self.events.append(event)
        self.order.append(event["type"])
        self.ended = event["type"] == "end_of_execution"

    @property
    def stdout(self):
        return bytes(self.written["stdout"])

    @property
    def stderr(self):
        return bytes(self.written["stderr"])

    @property
    def results(self):
        return [event for event in self.events if event["type"] == "result"]

    @property
    def errors(self):
        return [event for event in self.events if event["type"] == "error"]

    @property
    def error(self):
        if len(self.errors) != 1:
            raise AssertionError("expected one error, got %r" % self.events)
        return self.errors[0]

    @property
    def main(self):
        found = [result for result in self.results if result["is_main_result"]]
        if len(found) != 1:
            raise AssertionError("expected one main result, got %r" % self.events)
        return found[0]

    @property
    def text(self):
        return self.main.get("text")

    @property
    def count(self):
        return self.events[0]["execution_count"]


class KernelCase(unittest.TestCase):
    """A forkserver for the class, a new kernel for each test."""

    warm = "shell"

    @classmethod
    def setUpClass(cls):
        cls.forkserver = Forkserver(cls.warm)
        cls.addClassCleanup(cls.forkserver.close)

    def setUp(self):
        self.kernel = self.start()

    def start(self, **options):
        kernel = self.forkserver.start(**options)
        self.addCleanup(self.end, kernel)
        return kernel

    def end(self, kernel):
        kernel.close()
        # Wait for the forkserver's report, so that no test leaves a kernel to the next.
        self.assertEqual(self.forkserver.receive()["op"], "exited")

    def run_ok(self, code, **options):
        cell = self.kernel.run(code, **options)
        self.assertEqual(cell.errors, [], code)
        return cell
