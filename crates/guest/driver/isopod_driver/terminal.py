"""`sys.stdout` and `sys.stderr` of a kernel: text on the descriptors 1 and 2, written through.

A line leaves with one write when it is complete. The start of a line that nobody completes leaves a moment later, from a
thread that lives only for that moment, so that a progress bar is seen and a forking cell still finds one thread.
"""

import faulthandler
import io
import os
import sys
import threading

PARTIAL_LINE_SECONDS = 0.05


class Written(io.TextIOWrapper):
    """A text stream whose incomplete lines do not wait for their end."""

    def __init__(self, fd):
        raw = io.FileIO(fd, "w", closefd=False)
        buffer = io.BufferedWriter(raw, 1 << 16)
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
        self.due = False
        # The number of the process whose thread will clear `due`: a fork does not take threads along.
        self.due_in = 0

    def write(self, text):
        written = super().write(text)
        if "\n" not in text and "\r" not in text and text:
            self.flush_soon()
        return written

    def flush_soon(self):
        if self.due and self.due_in == os.getpid():
            return
        self.due, self.due_in = True, os.getpid()
        timer = threading.Timer(PARTIAL_LINE_SECONDS, self.flush_late)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            # No more threads can be had: write at once instead.
            self.flush_late()

    def flush_late(self):
        self.due = False
        try:
            self.flush()
        except (OSError, ValueError):
            pass


def open_both():
    """Makes them the process's streams; a crash in C code is told on stderr too."""
    stdout, stderr = Written(1), Written(2)
    sys.stdout = sys.__stdout__ = stdout
    sys.stderr = sys.__stderr__ = stderr
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable(file=2)
    return stdout, stderr
