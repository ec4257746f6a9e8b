"""The zygote: warm, outside of sandboxes, one per template. Each request makes it a mother inside one sandbox.

It runs no user code and knows nothing of any tenant. `enter` has the way in; here is only the loop.
"""

import gc
import os
import selectors
import signal

from . import enter, mother, wire


def serve(connection, interpreter):
    signal.signal(signal.SIGINT, lambda *_: None)
    wake = mother.catch_children()
    gc.collect()
    gc.freeze()
    wire.send_packet(connection, {"op": "ready"})
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            events = [key.fileobj for key, _ in selector.select()]
            if wake in events:
                mother.drain(wake)
                for _ in mother.reap():
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
        wire.send_packet(connection, enter.failure(message.get("id"), "request", problem))
        return
    fork_into(connection, interpreter, request)
    wire.close_all(fds)


def fork_into(connection, interpreter, request):
    """Only the zygote returns; it does not wait, so several may be under way."""
    if os.fork():
        return
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = enter.first(connection, interpreter, request)
    finally:
        os._exit(status)
