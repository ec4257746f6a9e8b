"""`sys.stdout` and `sys.stderr` of a kernel: text streams on the descriptors 1 and 2.

A complete line is written at once. An incomplete line is flushed a moment later, by a thread that lives only for that
moment. Checking each write would halve the speed of a cell that prints very much, so after many writes a thread flushes
periodically until the cell ends.
"""

import _thread
import faulthandler
import fcntl
import io
import os
import signal
import sys
import threading
import time
import warnings

from . import pristine

__builtins__ = pristine.BUILTINS

# The lowest number for the copies of the descriptors 1 and 2.
LOWEST_COPY = 10
# The `flush_interval` of ipykernel's OutStream, so that programs get output in the parts that they know. `print` writes its text and
# its line end apart: if this is too short for a busy machine, one `print` arrives as two messages.
PARTIAL_LINE_SECONDS = 0.2
BULK_WRITES = 2000
# The descriptors to look at if they cannot be listed.
MAX_FD = 4096
ALL_SIGNALS = signal.valid_signals()

# Held while a thread of this module flushes, and during every fork: a child must not inherit a half-flushed stream.
flushing = threading.Lock()


class Written(io.TextIOWrapper):
    """A text stream that also flushes incomplete lines, after a moment."""

    def __init__(self, number, fd):
        """Writes to `fd`, a copy of the descriptor `number`, which stays open when a cell closes `number`."""
        buffer = io.BufferedWriter(io.FileIO(fd, "w", closefd=False), 1 << 16)
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
        self.number, self.fd = number, fd
        self.pipe = identity(fd)
        # The process in which a thread will flush, if any: threads do not survive a fork.
        self.due_in = 0
        self.writes = 0
        self.bulk = False

    def write(self, text):
        written = super().write(text)
        self.writes += 1
        if self.writes > BULK_WRITES:
            self.switch_to_bulk()
        elif text[-1:] != "\n":
            self.flush_soon()
        return written

    def flush_soon(self):
        if self.due_in == os.getpid():
            return
        self.due_in = os.getpid()
        self.in_thread(self.flush_after_delay)

    def flush_after_delay(self):
        time.sleep(PARTIAL_LINE_SECONDS)
        self.due_in = 0
        flush_quietly(self)

    def switch_to_bulk(self):
        self.bulk = True
        # An instance attribute hides the method of the class: from now on printing goes straight to the C code.
        self.write = super().write
        self.in_thread(self.flush_periodically)

    def flush_periodically(self):
        while self.bulk:
            time.sleep(PARTIAL_LINE_SECONDS)
            flush_quietly(self)

    def end_bulk(self):
        """Called after each cell."""
        self.writes = 0
        if self.bulk:
            self.bulk = False
            del self.write

    def in_thread(self, function):
        # A thread inherits the signal mask, so block all signals. Otherwise this thread could take an interrupt while the main
        # thread has signals blocked to start a process, and the interrupt would not end the main thread's wait for it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            _thread.start_new_thread(function, ())
        except RuntimeError:
            # No more threads are available: lines are written when they are complete.
            self.due_in = 0
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def flush_quietly(stream):
    try:
        with flushing:
            stream.flush()
    except (OSError, ValueError):
        # User code may have closed it.
        pass


def identity(fd):
    """Identifies the file behind a descriptor. None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def restore(stream):
    """The stream, or a new one in its place, with both descriptors open. None if neither leads to the guest any more.
    If a cell has put another file at 1 or 2, that stays: it redirects what programs print."""
    at_number, at_copy = identity(stream.number), identity(stream.fd)
    if at_copy != stream.pipe:
        if at_number != stream.pipe:
            return None
        os.dup2(stream.number, stream.fd, inheritable=False)
    if at_number is None:
        os.dup2(stream.fd, stream.number)
    if not stream.closed:
        return stream
    opened = Written(stream.number, stream.fd)
    opened.pipe = stream.pipe
    return opened


def adopt(stream):
    """Takes the pipe that the stream leads to now for its own: a restored process has the same descriptors, and other pipes."""
    stream.pipe = identity(stream.fd)


def move(stream, fd):
    """Makes the stream, and every descriptor of its pipe, write to another pipe. Only for a copy of a kernel."""
    for number in descriptors():
        if identity(number) == stream.pipe:
            os.dup2(fd, number, os.get_inheritable(number))
    stream.pipe = identity(fd)
    # The threads that would flush it are not in the copy.
    stream.due_in = 0
    stream.end_bulk()


def descriptors():
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        # A cell may have hidden /proc or used up all descriptors.
        return range(MAX_FD)


def restore_stdin():
    if identity(0) is None:
        null = os.open("/dev/null", os.O_RDONLY)
        if null != 0:
            os.dup2(null, 0)
            os.close(null)
        else:
            os.set_inheritable(0, True)


def copied(number):
    return Written(number, fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, LOWEST_COPY))


def open_both():
    """Installs the process's standard streams. A crash in C code is reported on stderr too."""
    stdout, stderr = copied(1), copied(2)
    sys.stdout = sys.__stdout__ = stdout
    sys.stderr = sys.__stderr__ = stderr
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable(file=2)
    survive_forks()
    return stdout, stderr


def survive_forks():
    os.register_at_fork(before=flushing.acquire, after_in_parent=flushing.release, after_in_child=flushing.release)
    # The threads of this module are no danger to a child, because of `flushing`.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
