"""Sends the events of a cell in E2B's format. Flushes printed output before each event."""

import sys

from . import pristine, results, terminal

__builtins__ = pristine.BUILTINS


class Outputs:
    def __init__(self, lines, stdout, stderr):
        self.lines = lines
        self.streams = (stdout, stderr)

    def restore(self):
        """Reopens streams that the last cell closed. False if output can no longer reach the guest."""
        stdout, stderr = (terminal.restore(stream) for stream in self.streams)
        if stdout is None or stderr is None:
            return False
        self.streams = (stdout, stderr)
        if is_closed(sys.stdout):
            sys.stdout = stdout
        if is_closed(sys.stderr):
            sys.stderr = stderr
        terminal.restore_stdin()
        return True

    def count(self, number):
        self.lines.send({"type": "number_of_executions", "execution_count": number})

    def result(self, bundle, is_main):
        self.flush()
        self.lines.send(results.event(bundle, is_main))
        if not is_main:
            # Later output must not overtake this result.
            self.lines.wait_until_passed_on()

    def error(self, name, value, traceback):
        self.flush()
        self.lines.send(results.error(name, value, traceback))

    def broken(self, problem):
        """Reports that user code broke the interpreter, and relies on as little as possible."""
        try:
            self.error(type(problem).__name__, str(problem), "")
        except Exception:
            name = "the cell broke the interpreter that runs it"
            self.lines.send({"type": "error", "name": "BrokenInterpreter", "value": name, "traceback": ""})

    def end(self):
        self.flush()
        for stream in self.streams:
            try:
                stream.end_bulk()
            except Exception:
                # Cells may change the streams.
                pass
        self.lines.send({"type": "end_of_execution"})

    def flush(self):
        for stream in self.streams + (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                # User code may have closed it or replaced it with anything.
                pass


def is_closed(stream):
    try:
        return stream is None or bool(stream.closed)
    except Exception:
        return False


class Silent:
    """Discards a cell's events, for the warm-up."""

    def result(self, bundle, is_main):
        results.event(bundle, is_main)

    def error(self, name, value, traceback):
        results.error(name, value, traceback)

    def flush(self):
        pass
