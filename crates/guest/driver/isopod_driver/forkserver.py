"""The forkserver: a warm process that forks a kernel for each context on the guest's request.

It has one thread, runs no user code, and exits when its socket is closed. Its children outlive it; each has its own
stream.
"""

import gc
import os
import selectors
import signal
import socket
import sys
import traceback

from . import kernel, wire


def serve(connection, interpreter):
    signal.signal(signal.SIGINT, lambda *_: None)
    wake = catch_children()
    gc.collect()
    gc.freeze()
    wire.send_packet(connection, ready(interpreter))
    children = {}
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            events = [key.fileobj for key, _ in selector.select()]
            if wake in events:
                drain(wake)
                report_exits(connection, children)
            if connection in events:
                message, fds = wire.receive_packet(connection)
                if message is None:
                    return 0
                answer(connection, interpreter, children, message, fds)


def ready(interpreter):
    return {
        "op": "ready",
        "pid": os.getpid(),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "ipython": interpreter.has_ipython,
    }


def answer(connection, interpreter, children, message, fds):
    context = message.get("context")
    if message.get("op") != "start" or len(fds) != 3:
        wire.close_all(fds)
        wire.send_packet(connection, {"op": "refused", "context": context, "message": "expected start with 3 descriptors"})
        return
    pid = start(interpreter, message, fds)
    wire.close_all(fds)
    children[pid] = context
    wire.send_packet(connection, {"op": "started", "context": context, "pid": pid})


def start(interpreter, message, fds):
    """Forks the kernel of one context. Returns only in the forkserver."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = kernel.run(interpreter, message, fds)
    except BaseException:
        # A bug of the driver: errors of user code do not get here. Print it where the context's errors go.
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        # Whatever happened, never return to the forkserver's loop.
        os._exit(status)


def catch_children():
    """Returns a socket that becomes readable when a child has exited."""
    wake, sink = socket.socketpair()
    wake.setblocking(False)
    sink.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(sink.detach(), warn_on_full_buffer=False)
    return wake


def drain(wake):
    try:
        while wake.recv(4096):
            pass
    except BlockingIOError:
        pass


def report_exits(connection, children):
    for pid, status in reap():
        context = children.pop(pid, None)
        if context is not None:
            code = os.waitstatus_to_exitcode(status)
            wire.send_packet(connection, {"op": "exited", "context": context, "status": code})


def reap():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
