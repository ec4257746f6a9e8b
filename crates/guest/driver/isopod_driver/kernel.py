"""A kernel: the fork of the mother that runs one context's cells and speaks on its own stream.

    hello -> (begin) -> execute ... end_of_execution -> execute ... -> end of stream: exit

What cells print goes to the descriptors 1 and 2, not through the stream.
"""

import fcntl
import os
import socket
import traceback

from . import fresh, packages, stdin, terminal, wire
from .interrupts import Interrupts
from .outputs import Outputs


def run(interpreter, message, fds):
    """The whole life of a kernel; returns the exit status."""
    stream_fd, stdout_fd, stderr_fd = fds
    os.setsid()
    stream_fd = take_descriptors(stream_fd, stdout_fd, stderr_fd)
    stdout, stderr = terminal.open_both()
    lines = wire.Lines(socket.socket(fileno=stream_fd), Interrupts(), on_gone=lambda: os._exit(0))
    fresh.environment(message.get("env") or {})
    try:
        os.chdir(message.get("cwd") or "/")
    except OSError as error:
        lines.send({"type": "failed", "message": "cannot use the working directory: %s" % error})
        return 1
    leave_stream_to_kernel(lines)
    stdin.refuse()
    kernel = Kernel(interpreter, lines, Outputs(lines, stdout, stderr))
    lines.send({"type": "hello", "pid": os.getpid()})
    return kernel.serve()


class Kernel:
    def __init__(self, interpreter, lines, outputs):
        self.interpreter = interpreter
        self.lines = lines
        self.outputs = outputs
        self.interrupts = lines.interrupts
        self.pid = os.getpid()
        interpreter.attach(outputs)

    def serve(self):
        self.interrupts.install()
        while True:
            request = self.lines.receive()
            if request is None:
                return 0
            if request.get("op") == "begin":
                self.begin(request)
            elif request.get("op") == "execute":
                self.execute(request)

    def begin(self, request):
        fresh.environment(request.get("env") or {})
        fresh.reseed(request.get("seed") or "", self.interpreter.generators)
        packages.refresh()

    def execute(self, request):
        code = str(request.get("code") or "")
        self.outputs.count(self.interpreter.execution_count)
        packages.notice()
        with fresh.call_environment(request.get("env") or {}):
            self.run_interruptible(code)
        if os.getpid() != self.pid:
            # User code forked and its child came back here: only the kernel may go on.
            self.outputs.flush()
            os._exit(0)
        self.outputs.end()
        self.interpreter.after_cell(code)

    def run_interruptible(self, code):
        self.interrupts.install()
        try:
            with self.interrupts.cell():
                self.interpreter.run(code)
        except KeyboardInterrupt:
            # It came after the cell's own handling: between two statements of ours.
            self.interrupts.running = False
            self.outputs.error("KeyboardInterrupt", "", "KeyboardInterrupt")
        except Exception as problem:
            # User code can break what runs it; that too is an error of its cell.
            self.outputs.error(type(problem).__name__, str(problem), traceback.format_exc())


def take_descriptors(stream_fd, stdout_fd, stderr_fd):
    """Leaves exactly 0 (/dev/null), 1, 2 and the stream open; returns the stream's number."""
    stream_fd = keep_high(stream_fd)
    stdout_fd, stderr_fd = keep_high(stdout_fd), keep_high(stderr_fd)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    os.dup2(stream_fd, 3, inheritable=False)
    # The objects that own these live in the mother's frames below, which are never left.
    wire.close_except({0, 1, 2, 3})
    return 3


def keep_high(fd):
    """A copy that the fixed numbers cannot collide with."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def leave_stream_to_kernel(lines):
    """A child of user code must neither speak on the stream nor hold it open after the kernel's death."""
    os.register_at_fork(after_in_child=lambda: detach(lines))


def detach(lines):
    try:
        lines.close()
    except OSError:
        pass
