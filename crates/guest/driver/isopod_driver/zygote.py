"""The zygote: a warm process outside the sandboxes, one per template. On request, a fork of it enters a sandbox and becomes
the forkserver there.

It runs no user code and has no data of any tenant. This module is only the loop; `enter` enters a sandbox.
"""

import gc
import os
import selectors
import signal

from . import enter, forkserver, wire


def serve(connection, interpreter):
    signal.signal(signal.SIGINT, lambda *_: None)
    wake = forkserver.catch_children()
    gc.collect()
    gc.freeze()
    wire.send_packet(connection, {"op": "ready"})
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            events = [key.fileobj for key, _ in selector.select()]
            if wake in events:
                forkserver.drain(wake)
                for _ in forkserver.reap():
                    pass
            if connection in events:
                message, fds = wire.receive_packet(connection)
                if message is None:
                    return 0
                answer(connection, interpreter, message, fds)


def answer(connection, interpreter, message, fds):
    try:
        request = enter.Request(message, fds)
    except (TypeError, ValueError, KeyError) as problem:
        wire.close_all(fds)
        wire.send_packet(connection, enter.failure("request", problem))
        return
    fork_into(interpreter, request)
    request.admission.detach()
    wire.close_all(fds)


def fork_into(interpreter, request):
    """Returns only in the zygote, which does not wait, so that several forks may run at once."""
    if os.fork():
        return
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = enter.first(interpreter, request)
    finally:
        os._exit(status)
