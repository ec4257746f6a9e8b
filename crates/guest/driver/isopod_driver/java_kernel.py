"""A kernel for Java: runs `JavaKernel.java` with the sandbox's JDK and speaks its protocol of lines.

Has the methods of a `JupyterKernel`, so that the bridge uses either. Needs no package of Python.
"""

import base64
import codecs
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

from . import jupyter, syscalls

# The name of the spec. A Jupyter kernel for Java that somebody has installed comes first.
NAME = "isopod-java"
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "JavaKernel.java")
# It compiles, and does not compute: a quick start matters more than speed, and the memory is for the cells.
OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
START_SECONDS = 60.0


def find_java():
    """The `java` of a JDK, or None. A runtime without the compiler is not enough."""
    home = os.environ.get("JAVA_HOME")
    candidates = [os.path.join(home, "bin", "jshell")] if home else []
    candidates.append(shutil.which("jshell") or "")
    for jshell in candidates:
        java = os.path.join(os.path.dirname(os.path.realpath(jshell)), "java")
        if os.access(jshell, os.X_OK) and os.access(java, os.X_OK):
            return java
    return None


def start(spec, environment):
    kernel = JavaKernel(spec, environment)
    if kernel.wait_until_ready(START_SECONDS):
        return kernel
    said = kernel.log_tail()
    kernel.kill()
    raise jupyter.StartError("the Java kernel did not start: %s" % (said or "no answer within %d s" % START_SECONDS))


class JavaKernel:
    def __init__(self, spec, environment):
        self.spec = spec
        self.executions = 0
        self.buffer = b""
        self.is_closed = False
        self.log = tempfile.TemporaryFile(prefix="kernel-")
        self.process = self.spawn(environment)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.decoders = {}

    def spawn(self, environment):
        try:
            return subprocess.Popen(
                self.spec.argv,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                # As for Jupyter kernels: a group of its own, which ends with the bridge.
                start_new_session=True,
                preexec_fn=syscalls.end_with_parent,
            )
        except OSError as error:
            raise jupyter.StartError("cannot run %s: %s" % (self.spec.argv[0], error)) from error

    def wait_until_ready(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.is_closed:
            select.select([self.process.stdout], [], [], 0.5)
            if any(words == ["ready"] for words in self.take()):
                return True
        return False

    def run(self, code, silent, wake, on_interrupt):
        """Yields (kind, content) of the cell's messages until it is done. Raises Died."""
        decoder = codecs.getincrementaldecoder("utf-8")
        self.decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self.send("run " + base64.b64encode(code.encode("utf-8", "replace")).decode("ascii"))
        if not silent:
            self.executions += 1
            yield "execute_input", {"execution_count": self.executions}
        while True:
            ready = select.select([self.process.stdout, wake], [], [], 0.5)[0]
            if wake in ready:
                on_interrupt()
            if not ready:
                self.resume()
            for words in self.take():
                if words == ["done"]:
                    return
                yield self.message(words)
            if self.is_closed:
                raise jupyter.Died()

    def message(self, words):
        kind, texts = words[0], [base64.b64decode(word) for word in words[1:]]
        if kind in self.decoders:
            return "stream", {"name": kind, "text": self.decoders[kind].decode(texts[0])}
        texts = [text.decode("utf-8", "replace") for text in texts]
        if kind == "result":
            return "execute_result", {"data": {"text/plain": texts[0]}}
        name, value, traceback = texts
        return "error", {"ename": name, "evalue": value, "traceback": [traceback]}

    def take(self):
        """The words of each line that has arrived, without waiting."""
        while not self.is_closed:
            try:
                chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                break
            self.is_closed = not chunk
            self.buffer += chunk
            # What prints all the time must not keep an interrupt waiting.
            if len(chunk) < 1 << 16:
                break
        *lines, self.buffer = self.buffer.split(b"\n")
        return [line.decode("ascii").split(" ") for line in lines]

    def send(self, line):
        try:
            self.process.stdin.write(line.encode("ascii") + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise jupyter.Died() from error

    def interrupt(self):
        self.send("interrupt")

    def resume(self):
        """Code may stop its own virtual machine, which is the child of the kernel's."""
        for pid in (self.process.pid, *jupyter.children_of(self.process.pid)):
            if jupyter.is_stopped(pid):
                os.kill(pid, signal.SIGCONT)

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            try:
                stream.close()
            except OSError:
                pass

    def log_tail(self):
        self.log.seek(0)
        return self.log.read()[-2000:].decode("utf-8", "replace").strip()
