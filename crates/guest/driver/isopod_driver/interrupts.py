"""SIGINT: stops the running cell, and is harmless at any other time.

It never cuts a line that is being written to the guest: it is held back until the line is out.
"""

import contextlib
import os
import signal


class Interrupts:
    def __init__(self):
        self.running = False
        self.holds = 0
        self.pending = False

    def install(self):
        """Before every cell, since user code may have put its own handler there."""
        if signal.getsignal(signal.SIGINT) != self.handle:
            signal.signal(signal.SIGINT, self.handle)

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
                # Also right when another thread held it: Python runs handlers in the main one.
                os.kill(os.getpid(), signal.SIGINT)

    @contextlib.contextmanager
    def cell(self):
        """While this lasts, an interrupt raises KeyboardInterrupt."""
        self.pending = False
        self.running = True
        try:
            yield
        finally:
            self.running = False
