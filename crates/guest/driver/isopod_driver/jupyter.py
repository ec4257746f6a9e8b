"""One Jupyter kernel: started from its spec, asked to run code, interrupted, killed.

Over ipc sockets where the kernel can; some only know tcp, and get 127.0.0.1.
"""

import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

from . import syscalls
from .fence import Fence

START_SECONDS = 40.0
# Long enough for a slow kernel, short enough that a kernel which cannot do ipc is not waited for in vain.
IPC_SECONDS = 8.0
# What a kernel prints after it was done; it would have to be very busy to take longer.
LATE_SECONDS = 5.0
# Known to bind only tcp; others are tried with ipc first.
TCP_ONLY = ("deno", "ir", "java", "ijava", "rjk", "xeus")

# Has no way to be interrupted: a loop goes on, anything else ends the kernel.
NEVER_STOPS = ("deno",)


class StartError(Exception):
    """The kernel could not be started; the message says why."""


class Died(Exception):
    """The kernel's process is gone."""


def is_available():
    return importlib.util.find_spec("jupyter_client") is not None


def start(spec, environment):
    transports = [("tcp", START_SECONDS)]
    if not any(word in spec.name.lower() for word in TCP_ONLY):
        transports.insert(0, ("ipc", IPC_SECONDS))
    for transport, seconds in transports:
        kernel = JupyterKernel(spec, environment, transport)
        if kernel.wait_until_ready(seconds):
            return kernel
        said = kernel.last_words()
        kernel.kill()
    raise StartError("the %s kernel did not start: %s" % (spec.display, said or "no answer within %d s" % seconds))


class JupyterKernel:
    def __init__(self, spec, environment, transport):
        from jupyter_client import BlockingKernelClient

        self.spec = spec
        self.directory = tempfile.mkdtemp(prefix="kernel-")
        self.log = open(os.path.join(self.directory, "log"), "w+b")
        connection = self.write_connection(transport)
        self.process = self.spawn(environment)
        self.client = BlockingKernelClient()
        self.client.load_connection_info(connection)
        self.client.start_channels(hb=False, stdin=False)

    def write_connection(self, transport):
        ports = self.ipc_names() if transport == "ipc" else free_ports(5)
        names = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
        connection = {
            **dict(zip(names, ports)),
            "transport": transport,
            "ip": os.path.join(self.directory, "s") if transport == "ipc" else "127.0.0.1",
            "key": uuid.uuid4().hex,
            "signature_scheme": "hmac-sha256",
            "kernel_name": self.spec.name,
        }
        self.connection_file = os.path.join(self.directory, "connection.json")
        with open(self.connection_file, "w", encoding="utf-8") as file:
            json.dump(connection, file)
        return connection

    @staticmethod
    def ipc_names():
        return [1, 2, 3, 4, 5]

    def spawn(self, environment):
        replaced = {"{connection_file}": self.connection_file, "{resource_dir}": self.spec.directory}
        argv = [replaced.get(part, part.replace("{connection_file}", self.connection_file)) for part in self.spec.argv]
        try:
            return subprocess.Popen(
                argv,
                env={**os.environ, **self.spec.env, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                # Its own group: an interrupt and the end reach what the kernel started too.
                start_new_session=True,
                # A bridge that is killed cannot end its kernel any more.
                preexec_fn=syscalls.end_with_parent,
            )
        except OSError as error:
            raise StartError("cannot run %s: %s" % (argv[0], error)) from error

    def wait_until_ready(self, seconds):
        """Asks for the kernel's information until it answers; also makes sure that iopub is connected."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.is_alive():
            request = self.client.kernel_info()
            if self.is_answered(request, deadline) and self.sees_status(request):
                return True
        return False

    def is_answered(self, request, deadline):
        step = min(time.monotonic() + 1.0, deadline)
        while time.monotonic() < step and self.is_alive():
            reply = self.next_message(self.client.shell_channel, 0.1)
            if reply is not None and reply["parent_header"].get("msg_id") == request:
                return True
        return False

    def sees_status(self, request):
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            message = self.next_message(self.client.iopub_channel, 0.1)
            if message is not None and message["parent_header"].get("msg_id") == request:
                return True
        return False

    @staticmethod
    def next_message(channel, seconds):
        import queue

        try:
            return channel.get_msg(timeout=seconds)
        except queue.Empty:
            return None

    def run(self, code, silent, wake, on_interrupt):
        """Yields (kind, content) of what the cell says until it is done. Raises Died."""
        log_start = self.log_size()
        request = self.client.execute(code, silent=silent, store_history=not silent, allow_stdin=False)
        cell = Cell([request])
        yield from self.until(cell.is_done, cell, wake, on_interrupt)
        if not silent and Fence.needed(self.spec):
            yield from self.late_output(cell, wake, on_interrupt)
        if cell.failed_unheard:
            yield "error", self.unheard_error(cell.reply, log_start)

    def until(self, is_over, cell, wake, on_interrupt):
        poller = self.poller(wake)
        while not is_over():
            ready = dict(poller.poll(500))
            if wake in ready:
                on_interrupt()
            if not ready and not self.is_alive():
                raise Died()
            yield from self.take(cell)

    def late_output(self, cell, wake, on_interrupt):
        fence = Fence()
        request = self.client.execute(fence.code(), store_history=False, allow_stdin=False)
        behind = Cell(cell.requests + [request], said_by=cell)
        deadline = time.monotonic() + LATE_SECONDS

        def is_over():
            return time.monotonic() > deadline or (behind.is_done() and fence.is_reached)

        for kind, content in self.until(is_over, behind, wake, on_interrupt):
            content = fence.without_mark(content) if kind == "stream" else content
            if content is not None and kind != "execute_input":
                yield kind, content

    def unheard_error(self, reply, log_start):
        """The kernel refused the code without a message about it; what it wrote to its log says more."""
        self.log.seek(log_start)
        logged = self.log.read().decode("utf-8", "replace").strip()
        return {
            "ename": reply.get("ename") or "Error",
            "evalue": reply.get("evalue") or "",
            "traceback": reply.get("traceback") or [logged],
        }

    def log_size(self):
        return os.fstat(self.log.fileno()).st_size

    def poller(self, wake):
        import zmq

        poller = zmq.Poller()
        poller.register(self.client.iopub_channel.socket, zmq.POLLIN)
        poller.register(self.client.shell_channel.socket, zmq.POLLIN)
        poller.register(wake, select.POLLIN)
        return poller

    def take(self, cell):
        """What is there now, without waiting."""
        while True:
            message = self.next_message(self.client.iopub_channel, 0)
            if message is None:
                break
            said = cell.hear(message)
            if said is not None:
                yield said
        while cell.reply is None:
            message = self.next_message(self.client.shell_channel, 0)
            if message is None:
                break
            cell.hear_reply(message)

    def interrupt(self):
        if any(word in self.spec.name.lower() for word in NEVER_STOPS):
            self.signal_group(signal.SIGKILL)
        elif self.spec.interrupt_mode == "message":
            self.client.control_channel.send(self.client.session.msg("interrupt_request", content={}))
        else:
            self.signal_group(signal.SIGINT)

    def kill(self):
        self.signal_group(signal.SIGKILL)
        self.process.wait()
        self.client.stop_channels()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def signal_group(self, number):
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def is_alive(self):
        return self.process.poll() is None

    def last_words(self):
        self.log.seek(0)
        return self.log.read()[-2000:].decode("utf-8", "replace").strip()


class Cell:
    """What is known of one request: whether it is done, and whether an error was told."""

    def __init__(self, requests, said_by=None):
        self.requests = requests
        self.is_idle = False
        self.reply = None
        # The cell whose errors count as told, for a request that only follows another.
        self.told = said_by or self
        self.error_told = False

    def is_done(self):
        return self.is_idle and self.reply is not None

    @property
    def failed_unheard(self):
        return self.reply.get("status") == "error" and not self.error_told

    def hear(self, message):
        """(kind, content) to pass on, or None."""
        parent, kind, content = message["parent_header"].get("msg_id"), message["msg_type"], message["content"]
        if parent not in self.requests:
            return None
        if kind == "status":
            if parent == self.requests[-1] and content.get("execution_state") == "idle":
                self.is_idle = True
            return None
        if kind == "error":
            self.told.error_told = True
        return kind, content

    def hear_reply(self, message):
        if message["parent_header"].get("msg_id") == self.requests[-1]:
            self.reply = message["content"]


def free_ports(count):
    """Held all at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
