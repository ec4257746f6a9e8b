"""A kernel for JavaScript: runs `node_kernel.cjs` with the sandbox's Node.js and speaks its protocol of lines."""

import codecs
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import threading

from . import jupyter, own_kernel

# The name of the spec. A Jupyter kernel for JavaScript or TypeScript that somebody has installed comes first.
NAME = "isopod-node"
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node_kernel.cjs")
# Lets the kernel use Node's own parser, and survive when it stops a timer's code, which Node takes for an error of its own.
OPTIONS = ["--expose-internals", "--no-force-async-hooks-checks"]
# How often a call that waits for a program is helped by an interrupt of that program, before the kernel is ended.
MAX_STUCK = 5
# How much output of the time between two cells is kept for the next one.
MAX_EARLY = 1 << 20


def find_node():
    return shutil.which("node") or shutil.which("nodejs")


def start(spec, environment):
    return own_kernel.wait_for(NodeKernel(spec, environment))


class NodeKernel(own_kernel.OwnKernel):
    def __init__(self, spec, environment):
        super().__init__(spec)
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = self.spawn(
                environment,
                str(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        self.socket.setblocking(False)
        self.reader = self.socket.fileno()
        self.outputs = Outputs({self.process.stdout: "stdout", self.process.stderr: "stderr"})
        self.stuck = 0

    @staticmethod
    def is_ready(line):
        return json.loads(line)["kind"] == "ready"

    def run(self, code, silent, wake, on_interrupt):
        """Yields (kind, content) of the cell's messages until it is done. Raises Died."""
        self.stuck = 0
        self.outputs.stop_waiting()
        try:
            self.executions += not silent
            self.send({"op": "run", "code": code, "name": "environment.js" if silent else "cell-%d.js" % self.executions})
            if not silent:
                yield "execute_input", {"execution_count": self.executions}
            yield from self.until_done(wake, on_interrupt)
        finally:
            self.outputs.start_waiting()

    def until_done(self, wake, on_interrupt):
        is_done = False
        while not is_done:
            ready = select.select([self.reader, wake, *self.outputs.open], [], [], 0.5)[0]
            if wake in ready:
                on_interrupt()
            if not ready:
                self.resume()
            lines = [json.loads(line) for line in self.take_lines()]
            is_done = any(line["kind"] == "done" for line in lines)
            # After the lines: what a cell has printed is there when it is done.
            yield from self.outputs.take()
            for line in lines:
                yield from self.messages(line)
            if self.is_closed:
                raise jupyter.Died()
        yield from self.outputs.rest()

    def messages(self, line):
        if line["kind"] == "result":
            yield "execute_result", {"data": line["data"]}
        elif line["kind"] == "display":
            yield "display_data", {"data": line["data"]}
        elif line["kind"] == "error":
            yield "error", {"ename": line["name"], "evalue": line["value"], "traceback": [line["traceback"]]}
        elif line["kind"] == "stuck":
            self.help()

    def help(self):
        """The cell waits for a program that it has started, or for something that never ends."""
        self.stuck += 1
        if self.stuck > MAX_STUCK:
            self.signal_group(signal.SIGKILL)
            return
        for pid in descendants_of(self.process.pid):
            try:
                os.kill(pid, signal.SIGINT)
            except ProcessLookupError:
                pass

    def send(self, message):
        try:
            self.socket.setblocking(True)
            self.socket.sendall(json.dumps(message).encode("ascii") + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise jupyter.Died() from error
        finally:
            self.socket.setblocking(False)

    def interrupt(self):
        self.send({"op": "interrupt"})

    def close(self):
        self.outputs.close()
        self.socket.close()

    def log_tail(self):
        return "".join(content["text"] for _, content in self.outputs.take())[-2000:].strip()


def descendants_of(pid):
    children = jupyter.children_of(pid)
    return children + [other for child in children for other in descendants_of(child)]


class Outputs:
    """The process's own streams. Between two cells, a thread reads them: a server that a cell has started must not wait."""

    def __init__(self, names):
        self.open = {pipe.fileno(): name for pipe, name in names.items()}
        self.pipes = list(names)
        self.decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in names.values()}
        for fd in self.open:
            os.set_blocking(fd, False)
        # What the thread has read, for the next cell.
        self.early = []
        self.thread = None
        self.stopper = None

    def take(self):
        """Yields what has arrived. One read takes all that a pipe has."""
        early, self.early = self.early, []
        arrived = [(name, self.read(fd)) for fd, name in list(self.open.items())]
        for name, data in early + arrived:
            if data:
                yield from self.text(name, self.decoders[name].decode(data))

    def rest(self):
        """What is left of a character that has not ended."""
        for name, decoder in self.decoders.items():
            yield from self.text(name, decoder.decode(b"", final=True))
            decoder.reset()

    @staticmethod
    def text(name, text):
        if text:
            yield "stream", {"name": name, "text": text}

    def read(self, fd):
        try:
            chunk = os.read(fd, 1 << 20)
        except BlockingIOError:
            return None
        if not chunk:
            self.open.pop(fd, None)
        return chunk

    def start_waiting(self):
        if self.open and self.thread is None:
            reader, self.stopper = os.pipe2(os.O_CLOEXEC)
            self.thread = threading.Thread(target=self.wait, args=(reader,), daemon=True)
            self.thread.start()

    def stop_waiting(self):
        if self.thread is not None:
            os.close(self.stopper)
            self.thread.join()
            self.thread = None

    def wait(self, stopped):
        kept = 0
        while True:
            ready = select.select([stopped, *self.open], [], [])[0]
            if stopped in ready:
                break
            for fd in ready:
                name = self.open[fd]
                chunk = self.read(fd)
                if chunk and kept < MAX_EARLY:
                    kept += len(chunk)
                    self.early.append((name, chunk))
        os.close(stopped)

    def close(self):
        self.stop_waiting()
        for pipe in self.pipes:
            pipe.close()
