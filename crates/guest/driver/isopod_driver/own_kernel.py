"""What the kernels of our own share: a program that we start and talk to in lines.

A kernel has the methods of a `JupyterKernel`, so that the bridge uses either, and needs no package of Python.
"""

import os
import select
import signal
import subprocess
import time

from . import jupyter, syscalls

START_SECONDS = 60.0


def wait_for(kernel):
    """Returns the kernel once it is ready."""
    if kernel.wait_until_ready(START_SECONDS):
        return kernel
    said = kernel.log_tail()
    kernel.kill()
    why = said or "no answer within %d s" % START_SECONDS
    raise jupyter.StartError("the %s kernel did not start: %s" % (kernel.spec.display, why))


class OwnKernel:
    """`process` is its process, `reader` the descriptor that its lines come from, and does not block."""

    process = None
    reader = None

    def __init__(self, spec):
        self.spec = spec
        self.executions = 0
        self.buffer = b""
        self.is_closed = False

    def spawn(self, environment, *arguments, **options):
        try:
            return subprocess.Popen(
                [*self.spec.argv, *arguments],
                env={**os.environ, **environment},
                # As for Jupyter kernels: a group of its own, which ends with the bridge.
                start_new_session=True,
                preexec_fn=syscalls.end_with_parent,
                **options,
            )
        except OSError as error:
            raise jupyter.StartError("cannot run %s: %s" % (self.spec.argv[0], error)) from error

    def wait_until_ready(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.is_closed:
            select.select([self.reader], [], [], 0.5)
            if any(self.is_ready(line) for line in self.take_lines()):
                return True
        return False

    def take_lines(self):
        """The lines that have arrived, without waiting."""
        while not self.is_closed:
            try:
                chunk = os.read(self.reader, 1 << 20)
            except BlockingIOError:
                break
            except ConnectionResetError:
                chunk = b""
            self.is_closed = not chunk
            self.buffer += chunk
            # What prints all the time must not keep an interrupt waiting.
            if len(chunk) < 1 << 16:
                break
        *lines, self.buffer = self.buffer.split(b"\n")
        return lines

    def resume(self):
        """Code may stop its own process, or that of the kernel."""
        for pid in (self.process.pid, *self.helpers()):
            if jupyter.is_stopped(pid):
                os.kill(pid, signal.SIGCONT)

    def helpers(self):
        """Processes of the kernel that run its cells."""
        return []

    def kill(self):
        self.signal_group(signal.SIGKILL)
        self.process.wait()
        self.close()

    def signal_group(self, number):
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
