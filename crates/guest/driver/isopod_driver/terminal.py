"""`sys.stdout` and `sys.stderr` of a kernel: text on the descriptors 1 and 2, written through.

A line leaves with one write when it is complete. The start of a line that nobody completes leaves a moment later, from a
thread that lives only for that moment. A cell that prints very much is not watched write by write any more, which would
halve its speed; a thread looks after it from time to time until the cell ends.
"""

import _thread
import faulthandler
import io
import os
import signal
import sys
import threading
import time
import warnings

PARTIAL_LINE_SECONDS = 0.05
HOT_WRITES = 2000
ALL_SIGNALS = signal.valid_signals()

# Held while a thread of ours flushes, and over every fork: a child must not inherit a stream in the middle of a flush.
flushing = threading.Lock()


class Written(io.TextIOWrapper):
    """A text stream whose incomplete lines do not wait for their end."""

    def __init__(self, fd):
        buffer = io.BufferedWriter(io.FileIO(fd, "w", closefd=False), 1 << 16)
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
        # The process in which a thread will flush, if any: a fork does not take threads along.
        self.due_in = 0
        self.writes = 0
        self.hot = False

    def write(self, text):
        written = super().write(text)
        self.writes += 1
        if self.writes > HOT_WRITES:
            self.get_hot()
        elif text[-1:] != "\n":
            self.flush_soon()
        return written

    def flush_soon(self):
        if self.due_in == os.getpid():
            return
        self.due_in = os.getpid()
        self.in_thread(self.flush_late)

    def flush_late(self):
        time.sleep(PARTIAL_LINE_SECONDS)
        self.due_in = 0
        flush_quietly(self)

    def get_hot(self):
        self.hot = True
        # Found before the method of the class: from now on printing goes straight to the C code.
        self.write = super().write
        self.in_thread(self.look_after)

    def look_after(self):
        while self.hot:
            time.sleep(PARTIAL_LINE_SECONDS)
            flush_quietly(self)

    def cool_down(self):
        """After a cell."""
        self.writes = 0
        if self.hot:
            self.hot = False
            del self.write

    def in_thread(self, function):
        # A thread inherits what is blocked. One that took an interrupt while the main thread starts a process, and so
        # blocks all signals, would not wake it from the wait for that process: the interrupt would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            _thread.start_new_thread(function, ())
        except RuntimeError:
            # No more threads can be had: lines leave when they are complete.
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


def open_both():
    """Makes them the process's streams; a crash in C code is told on stderr too."""
    stdout, stderr = Written(1), Written(2)
    sys.stdout = sys.__stdout__ = stdout
    sys.stderr = sys.__stderr__ = stderr
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable(file=2)
    survive_forks()
    return stdout, stderr


def survive_forks():
    os.register_at_fork(before=flushing.acquire, after_in_parent=flushing.release, after_in_child=flushing.release)
    # The threads of this file are no danger to a child; `flushing` sees to that.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
