"""The events of a cell, in the words of the E2B wire. Before each one, what was printed earlier is written out."""

import sys

from . import results


class Outputs:
    def __init__(self, lines, stdout, stderr):
        self.lines = lines
        self.streams = (stdout, stderr)

    def count(self, number):
        self.lines.send({"type": "number_of_executions", "execution_count": number})

    def result(self, bundle, is_main):
        self.flush()
        self.lines.send(results.event(bundle, is_main))
        if not is_main:
            # More may be printed: it must not overtake what is displayed here.
            self.lines.wait_until_passed_on()

    def error(self, name, value, traceback):
        self.flush()
        self.lines.send(results.error(name, value, traceback))

    def end(self):
        self.flush()
        for stream in self.streams:
            stream.cool_down()
        self.lines.send({"type": "end_of_execution"})

    def flush(self):
        for stream in self.streams + (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                # User code may have closed or replaced it.
                pass


class Silent:
    """Takes a cell's events and keeps none: for the warm-up."""

    def result(self, bundle, is_main):
        results.event(bundle, is_main)

    def error(self, name, value, traceback):
        results.error(name, value, traceback)

    def flush(self):
        pass
