"""SIGINT stops the running cell, and has no effect at any other time.

It never cuts a line that is being written to the guest: it is deferred until the line is complete.
"""

import contextlib
import signal
import threading

from . import pristine

__builtins__ = pristine.BUILTINS

# The guest sends it shortly after an interrupt. Python only records a signal and handles it at its next bytecode. If the
# signal arrives just before a blocking system call, it is not handled until that call returns; another signal ends the call.
NUDGE = signal.SIGURG


def nudged(_number, _frame):
    """Does nothing: Python handles the recorded interrupt after this has run."""


class Interrupts:
    def __init__(self):
        self.reset()

    def reset(self):
        self.running = False
        self.holds = 0
        self.pending = False

    def install(self):
        """Called before every cell, because user code may have installed its own handlers."""
        if signal.getsignal(signal.SIGINT) != self.handle:
            signal.signal(signal.SIGINT, self.handle)
        if signal.getsignal(NUDGE) != nudged:
            signal.signal(NUDGE, nudged)

    def handle(self, _number, _frame):
        if not self.running:
            return
        if self.holds:
            self.pending = True
            return
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def held_back(self):
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1
            if self.pending and not self.holds:
                self.pending = False
                # Always to the main thread: only there does it end a blocking call.
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    @contextlib.contextmanager
    def cell(self):
        """While this lasts, an interrupt raises KeyboardInterrupt."""
        self.pending = False
        self.running = True
        try:
            yield
        finally:
            self.running = False
