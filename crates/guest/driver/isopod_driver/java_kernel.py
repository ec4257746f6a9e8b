"""A kernel for Java: runs `JavaKernel.java` with the sandbox's JDK and speaks its protocol of lines."""

import base64
import codecs
import os
import select
import shutil
import subprocess
import tempfile

from . import jupyter, own_kernel

# The name of the spec. A Jupyter kernel for Java that somebody has installed comes first.
NAME = "isopod-java"
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "JavaKernel.java")
# It compiles, and does not compute: a quick start matters more than speed, and the memory is for the cells.
OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]

MAX_READ = 1 << 20


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
    return own_kernel.wait_for(JavaKernel(spec, environment))


class JavaKernel(own_kernel.OwnKernel):
    def __init__(self, spec, environment):
        super().__init__(spec)
        self.log = tempfile.TemporaryFile(prefix="kernel-")
        self.process = self.spawn(environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        self.reader = self.process.stdout.fileno()
        os.set_blocking(self.reader, False)
        self.decoders = {}
        self.files = None

    @staticmethod
    def is_ready(line):
        return line == b"ready"

    def run(self, code, silent, wake, on_interrupt):
        """Yields (kind, content) of the cell's messages until it is done. Raises Died."""
        decoder = codecs.getincrementaldecoder("utf-8")
        self.decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        if self.files is None:
            self.files = self.open_files()
        self.send("run " + base64.b64encode(code.encode("utf-8", "replace")).decode("ascii"))
        if not silent:
            self.executions += 1
            yield "execute_input", {"execution_count": self.executions}
        while True:
            ready = select.select([self.reader, wake], [], [], 0.5)[0]
            if wake in ready:
                on_interrupt()
            if not ready:
                self.resume()
            lines = self.take_lines()
            # After the lines: what a program has written is there when the cell is done.
            yield from self.take_from_files()
            for line in lines:
                if line == b"done":
                    return
                yield self.message(line.decode("ascii").split(" "))
            if self.is_closed:
                raise jupyter.Died()

    def open_files(self):
        """The files to which JShell sends the standard streams of the virtual machine that runs code. Programs that inherit
        them write there; code in Java does not."""
        files = {}
        for pid in self.helpers():
            for fd, name in ((1, "stdout"), (2, "stderr")):
                path = "/proc/%d/fd/%d" % (pid, fd)
                if os.path.isfile(path):
                    files[name] = open(path, "rb")
        return files

    def take_from_files(self):
        """Yields what is there now. What a program writes meanwhile comes the next time: it may write without an end."""
        for name, file in self.files.items():
            left = os.fstat(file.fileno()).st_size - file.tell()
            while left > 0 and (data := file.read(min(left, MAX_READ))):
                left -= len(data)
                yield "stream", {"name": name, "text": self.decoders[name].decode(data)}

    def message(self, words):
        kind, texts = words[0], [base64.b64decode(word) for word in words[1:]]
        if kind in self.decoders:
            return "stream", {"name": kind, "text": self.decoders[kind].decode(texts[0])}
        texts = [text.decode("utf-8", "replace") for text in texts]
        if kind == "result":
            return "execute_result", {"data": {"text/plain": texts[0]}}
        name, value, traceback = texts
        return "error", {"ename": name, "evalue": value, "traceback": [traceback]}

    def send(self, line):
        try:
            self.process.stdin.write(line.encode("ascii") + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise jupyter.Died() from error

    def interrupt(self):
        self.send("interrupt")

    def helpers(self):
        # Code runs in a virtual machine of its own, which is the child of the kernel's.
        return jupyter.children_of(self.process.pid)

    def close(self):
        for stream in (self.process.stdin, self.process.stdout, self.log, *(self.files or {}).values()):
            try:
                stream.close()
            except OSError:
                pass

    def log_tail(self):
        self.log.seek(0)
        return self.log.read()[-2000:].decode("utf-8", "replace").strip()
