"""A kernel: a fork of the forkserver that runs the cells of one context and has its own stream to the guest.

    hello -> (begin) -> execute ... end_of_execution -> execute, fork ... -> end of stream: exit

Cells print to the descriptors 1 and 2, not to the stream.
"""

import builtins
import fcntl
import os
import socket
import traceback
from os import _exit, getpid

from . import copies, fork_state, packages, pristine, stdin, terminal, wire
from .interrupts import Interrupts
from .outputs import Outputs

__builtins__ = pristine.BUILTINS


def run(interpreter, message, fds):
    """Runs the kernel until its stream ends. Returns the exit status."""
    stream_fd, stdout_fd, stderr_fd = fds
    os.setsid()
    stream_fd = take_descriptors(stream_fd, stdout_fd, stderr_fd)
    stdout, stderr = terminal.open_both()
    lines = wire.Lines(socket.socket(fileno=stream_fd), Interrupts(), on_gone=lambda: _exit(0))
    fork_state.environment(message.get("env") or {})
    try:
        os.chdir(message.get("cwd") or "/")
    except OSError as error:
        lines.send({"type": "failed", "message": "cannot use the working directory: %s" % error})
        return 1
    leave_stream_to_kernel(lines)
    stdin.refuse()
    kernel = Kernel(interpreter, lines, Outputs(lines, stdout, stderr))
    lines.send({"type": "hello", "pid": getpid()})
    return kernel.serve()


class Kernel:
    def __init__(self, interpreter, lines, outputs):
        self.interpreter = interpreter
        self.lines = lines
        self.outputs = outputs
        self.interrupts = lines.interrupts
        self.pid = getpid()
        # As they were before any cell.
        self.builtins = dict(vars(builtins))
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
            elif request.get("op") == "fork":
                copies.make(self, request.get("seeds"), self.lines.take_descriptors())
            elif request.get("op") == "restored":
                self.restored(request)

    def begin(self, request):
        fork_state.environment(request.get("env") or {})
        fork_state.reseed(request.get("seed") or "", self.interpreter.generators)
        packages.refresh()

    def restored(self, request):
        """This process was saved, and goes on below another guest. A copy gets a seed."""
        for stream in self.outputs.streams:
            terminal.adopt(stream)
        if request.get("seed"):
            fork_state.reseed(request["seed"], self.interpreter.generators)

    def execute(self, request):
        if not self.outputs.restore():
            # The guest would get no output of this cell. Nothing of it has run, so the guest gives it to another kernel.
            _exit(1)
        self.restore_useless_builtins()
        self.outputs.count(self.interpreter.execution_count)
        code = str(request.get("code") or "")
        try:
            packages.notice()
            with fork_state.call_environment(request.get("env") or {}):
                self.run_interruptible(code)
        except BaseException as problem:
            # Even a cell that breaks the interpreter gets an end.
            self.interrupts.running = False
            self.restore_builtins()
            self.outputs.broken(problem)
        if getpid() != self.pid:
            # User code forked, and this is the child: only the kernel may continue.
            self.outputs.flush()
            _exit(0)
        self.outputs.end()
        try:
            self.interpreter.after_cell(code)
        except Exception:
            # Ignored for the same reason.
            pass

    def continue_on(self, connection):
        """Makes this the kernel of another context, in a copy of the process."""
        self.pid = getpid()
        self.interrupts.reset()
        self.lines.continue_on(connection)

    def restore_useless_builtins(self):
        """Restores builtins that a cell deleted or replaced with something that is not callable."""
        now = vars(builtins)
        for name, original in self.builtins.items():
            if callable(original) and not callable(now.get(name)):
                now[name] = original

    def restore_builtins(self):
        """Restores all builtins. Cells may replace them for later cells, but only while the interpreter still works."""
        vars(builtins).update(self.builtins)

    def run_interruptible(self, code):
        self.interrupts.install()
        try:
            with self.interrupts.cell():
                is_sound = self.interpreter.run(code)
            if is_sound is False:
                self.restore_builtins()
        except KeyboardInterrupt:
            # It arrived outside the cell's own error handling, in the driver's code.
            self.interrupts.running = False
            self.outputs.error("KeyboardInterrupt", "", "KeyboardInterrupt")
        except Exception as problem:
            # User code can break the interpreter. That is an error of its cell too.
            self.restore_builtins()
            self.outputs.error(type(problem).__name__, str(problem), traceback.format_exc())


def take_descriptors(stream_fd, stdout_fd, stderr_fd):
    """Leaves only 0 (/dev/null), 1, 2 and the stream open. Returns the stream's number."""
    stream_fd = keep_high(stream_fd)
    stdout_fd, stderr_fd = keep_high(stdout_fd), keep_high(stderr_fd)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    os.dup2(stream_fd, 3, inheritable=False)
    # The objects that own these descriptors are in the forkserver's stack frames, which never return.
    wire.close_except({0, 1, 2, 3})
    return 3


def keep_high(fd):
    """Duplicates the descriptor to a number above the fixed ones."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def leave_stream_to_kernel(lines):
    """Children of user code must neither write to the stream nor hold it open after the kernel has died."""
    os.register_at_fork(after_in_child=lambda: detach(lines))


def detach(lines):
    try:
        lines.close()
    except OSError:
        pass
