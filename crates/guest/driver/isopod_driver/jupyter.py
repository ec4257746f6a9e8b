"""One Jupyter kernel: starts it from its spec, runs code in it, interrupts it, kills it.

Uses ipc sockets if the kernel supports them, or else tcp on 127.0.0.1.
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
# Long enough for a slow kernel, short enough not to waste time on a kernel that does not support ipc.
IPC_SECONDS = 8.0
# How long to wait for output after a kernel has reported `idle`.
LATE_SECONDS = 5.0
# How long to wait for the reply of an interrupted cell after a kernel has reported `idle`.
REPLY_SECONDS = 2.0
# Kernels that support only tcp. For others, ipc is tried first.
TCP_ONLY = ("deno", "ir", "java", "ijava", "rjk", "xeus")

# Kernels that cannot be interrupted: a loop continues, and anything else ends the kernel.
UNINTERRUPTIBLE = ("deno",)


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
        said = kernel.log_tail()
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
        self.cell = None
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
                # A group of its own: signals also reach the processes that the kernel starts.
                start_new_session=True,
                # A bridge that is killed cannot end its kernel itself.
                preexec_fn=syscalls.end_with_parent,
            )
        except OSError as error:
            raise StartError("cannot run %s: %s" % (argv[0], error)) from error

    def wait_until_ready(self, seconds):
        """Sends kernel_info requests until the kernel answers and iopub is connected."""
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
        """Yields (kind, content) of the cell's messages until it is done. Raises Died."""
        log_start = self.log_size()
        request = self.client.execute(code, silent=silent, store_history=not silent, allow_stdin=False)
        cell = self.cell = Cell([request])
        yield from self.until(cell.is_done, cell, wake, on_interrupt)
        if not silent and Fence.needed(self.spec):
            yield from self.late_output(cell, wake, on_interrupt)
        if cell.reply is None and not cell.error_reported:
            yield "error", {"ename": "KeyboardInterrupt", "evalue": "", "traceback": []}
        elif cell.reply is not None and cell.failed_silently:
            yield "error", self.silent_error(cell.reply, log_start)

    def until(self, is_over, cell, wake, on_interrupt):
        poller = self.poller(wake)
        while not is_over():
            ready = dict(poller.poll(500))
            if wake in ready:
                on_interrupt()
            if not ready:
                if not self.is_alive():
                    raise Died()
                self.resume()
            yield from self.take(cell)

    def late_output(self, cell, wake, on_interrupt):
        fence = Fence()
        request = self.client.execute(fence.code(), store_history=False, allow_stdin=False)
        behind = self.cell = Cell(cell.requests + [request], follows=cell)
        deadline = time.monotonic() + LATE_SECONDS

        def is_over():
            return time.monotonic() > deadline or (behind.is_done() and fence.is_reached)

        for kind, content in self.until(is_over, behind, wake, on_interrupt):
            content = fence.without_mark(content) if kind == "stream" else content
            if content is not None and kind != "execute_input":
                yield kind, content

    def silent_error(self, reply, log_start):
        """The kernel rejected the code without an error message. Its log says more."""
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
        """Yields the messages that have arrived, without waiting."""
        while True:
            message = self.next_message(self.client.iopub_channel, 0)
            if message is None:
                break
            said = cell.receive(message)
            if said is not None:
                if cell.interrupt_is_due():
                    self.send_interrupt()
                yield said
        while cell.reply is None:
            message = self.next_message(self.client.shell_channel, 0)
            if message is None:
                break
            cell.receive_reply(message)

    def interrupt(self):
        """Interrupts the cell, or does so as soon as it has begun: kernels ignore signals between two cells."""
        if self.cell.begin_interrupt():
            self.send_interrupt()

    def send_interrupt(self):
        if any(word in self.spec.name.lower() for word in UNINTERRUPTIBLE):
            self.signal_group(signal.SIGKILL)
        elif self.spec.interrupt_mode == "message":
            self.client.control_channel.send(self.client.session.msg("interrupt_request", content={}))
        else:
            self.signal_group(signal.SIGINT)

    def resume(self):
        """Code may stop its own kernel, and nothing else would resume it. Other processes that it stopped stay stopped."""
        for pid in (self.process.pid, *interpreters_of(self.process.pid)):
            if is_stopped(pid):
                os.kill(pid, signal.SIGCONT)

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

    def log_tail(self):
        self.log.seek(0)
        return self.log.read()[-2000:].decode("utf-8", "replace").strip()


class Cell:
    """The state of one request: whether it is done, and whether an error was reported."""

    def __init__(self, requests, follows=None):
        self.requests = requests
        self.idle_since = None
        self.reply = None
        # What follows a cell belongs to it, and that one has begun.
        self.has_begun = follows is not None
        self.is_interrupted = False
        self.is_signalled = False
        # Errors of a follow-up request count as reported by the cell it follows.
        self.reports_for = follows or self
        self.error_reported = False

    def is_done(self):
        return self.idle_since is not None and (self.reply is not None or self.has_lost_reply())

    def has_lost_reply(self):
        """An interrupt between the messages of a cell can end its handling in the kernel, which then never replies."""
        return self.is_interrupted and time.monotonic() - self.idle_since > REPLY_SECONDS

    def begin_interrupt(self):
        """Whether to signal the kernel now."""
        self.is_interrupted = True
        self.is_signalled |= self.has_begun
        return self.has_begun

    def interrupt_is_due(self):
        """Whether to signal the kernel now, for an interrupt that came before the cell had begun. True once."""
        is_due = self.is_interrupted and self.has_begun and not self.is_signalled
        self.is_signalled |= is_due
        return is_due

    @property
    def failed_silently(self):
        return self.reply.get("status") == "error" and not self.error_reported

    def receive(self, message):
        """The (kind, content) to pass on, or None."""
        parent, kind, content = message["parent_header"].get("msg_id"), message["msg_type"], message["content"]
        if parent not in self.requests:
            return None
        if kind == "status":
            if parent == self.requests[-1] and content.get("execution_state") == "idle":
                self.idle_since = time.monotonic()
            return None
        self.has_begun = True
        if kind == "error":
            self.reports_for.error_reported = True
        return kind, content

    def receive_reply(self, message):
        if message["parent_header"].get("msg_id") == self.requests[-1]:
            self.reply = message["content"]


def interpreters_of(pid):
    """The interpreters that a kernel starts for its cells, as the bash kernel does: children that are session leaders."""
    try:
        return [child for child in children_of(pid) if os.getsid(child) == child]
    except OSError:
        return []


def children_of(pid):
    """The children of all threads of a process."""
    found = []
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread), encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def is_stopped(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name before the state may contain anything, parentheses too.
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def free_ports(count):
    """Opens all of them at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
