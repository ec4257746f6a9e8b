"""Forks copies of a kernel. Each has the kernel's variables, and a stream and pipes of its own.

    kernel -- fork --> middle process -- fork --> copy, copy, ...

The middle process exits at once, so that the guest, as pid 1, adopts the copies and reaps them. They outlive the kernel.
A copy says hello on its own stream. If it cannot be made, the reason is reported there.
"""

import fcntl
import socket
from os import WNOHANG, _exit, fork, getpid, kill, setsid, waitpid, write
from signal import SIGKILL, set_wakeup_fd
from time import monotonic, sleep

from . import event_loops, fork_state, pristine, terminal, threads, wire

__builtins__ = pristine.BUILTINS

# Of each copy: its stream and two pipes.
DESCRIPTORS = 3
LOWEST_STREAM = 3
# How long the middle process may take. Functions that user code has registered for forks run in it and may block.
MIDDLE_SECONDS = 10.0


class Copy:
    def __init__(self, seed, fds):
        self.seed = seed
        self.stream_fd, self.stdout_fd, self.stderr_fd = fds

    def report(self, problem):
        """Tells the guest why this copy could not be made."""
        message = {"type": "failed", "message": "cannot fork the kernel: %s" % problem}
        try:
            write(self.stream_fd, pristine.encode(message).encode() + b"\n")
        except OSError:
            # The guest has stopped waiting.
            pass


def make(kernel, seeds, fds):
    """Makes a copy for each seed. Returns in the kernel and in each copy, where `kernel` then is the copy."""
    if not isinstance(seeds, list) or len(fds) != DESCRIPTORS * len(seeds):
        # The process has too many open, and some were lost. The guest sees the end of the streams.
        wire.close_all(fds)
        return
    copies = [Copy(seed, fds[DESCRIPTORS * at :][:DESCRIPTORS]) for at, seed in enumerate(seeds)]
    # Otherwise every copy would print it once more.
    kernel.outputs.flush()
    loops = event_loops.known(kernel.interpreter)
    try:
        middle = fork()
    except Exception as problem:
        for copy in copies:
            copy.report(problem)
        wire.close_all(fds)
        return
    if middle:
        wire.close_all(fds)
        wait_for(middle)
        return
    copy = fork_each(copies)
    try:
        become(kernel, copy, loops, fds)
    except BaseException as problem:
        copy.report(problem)
        _exit(1)
    kernel.lines.send({"type": "hello", "pid": getpid()})


def fork_each(copies):
    """Returns in each copy. The middle process never returns from here."""
    try:
        for copy in copies:
            try:
                if fork() == 0:
                    return copy
            except Exception as problem:
                copy.report(problem)
    except BaseException:
        # A signal handler of user code raised an exception.
        pass
    _exit(0)


def become(kernel, copy, loops, fds):
    """Gives the copy what it must not share with the kernel. Its stream to the guest was closed by the fork."""
    setsid()
    stream_fd = fcntl.fcntl(copy.stream_fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_STREAM)
    stdout, stderr = kernel.outputs.streams
    terminal.move(stdout, copy.stdout_fd)
    terminal.move(stderr, copy.stderr_fd)
    set_wakeup_fd(-1)
    threads.survive_fork()
    event_loops.abandon(kernel.interpreter, loops)
    fork_state.reseed(copy.seed, kernel.interpreter.generators)
    kernel.continue_on(socket.socket(fileno=stream_fd))
    # Those of the other copies too: a stream ends only when nobody holds it.
    wire.close_all(fds)


def wait_for(middle):
    deadline = monotonic() + MIDDLE_SECONDS
    pause = 0.0002
    try:
        while waitpid(middle, WNOHANG) == (0, 0):
            if monotonic() > deadline:
                kill(middle, SIGKILL)
            sleep(pause)
            pause = min(pause * 2, 0.01)
    except Exception:
        # User code reaps all children, ignores their end, or handles it badly.
        pass
