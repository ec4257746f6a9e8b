"""SIGINT: stops the running cell, and is harmless at any other time.

It never cuts a line that is being written to the guest: it is held back until the line is out.
"""

import contextlib
import signal
import threading

# Sent by the guest a moment after an interrupt. Python notes a signal and acts on it at the next step of its own: one
# that is noted just before a system call that waits would wait with it, and any other signal ends that wait.
NUDGE = signal.SIGURG


def nudged(_number, _frame):
    """What was noted is acted on when this has run."""


class Interrupts:
    def __init__(self):
        self.running = False
        self.holds = 0
        self.pending = False

    def install(self):
        """Before every cell, since user code may have put its own handler there."""
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
                # To the main thread, whichever held it: only there it ends a wait.
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
