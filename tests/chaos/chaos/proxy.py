"""A TCP proxy that can be cut: it drops connections and accepts no new ones, or it accepts everything and forwards nothing."""

import contextlib
import socket
import threading
from enum import Enum


class Mode(Enum):
    PASS = "pass"
    # New connections are closed at once.
    REFUSE = "refuse"
    # Sent data is held back until the proxy forwards again or closes.
    HANG = "hang"


class Proxy:
    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._mode = Mode.PASS
        self._passes = threading.Event()
        self._passes.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, mode: Mode) -> None:
        self._mode = mode
        self._passes.clear()
        if mode is Mode.REFUSE:
            self._drop_all()

    def restore(self) -> None:
        """Forwards everything again. Does nothing if nothing was cut."""
        if self._mode is Mode.PASS:
            return
        # Held bytes are not delivered late: their receiver sees a broken connection and retries.
        self._drop_all()
        self._mode = Mode.PASS
        self._passes.set()

    def close(self) -> None:
        self._listener.close()
        self._drop_all()
        self._passes.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._mode is Mode.REFUSE:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._upstream, timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._sockets |= {client, server}
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        back.join()
        with self._lock:
            self._sockets -= {client, server}
        client.close()
        server.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _drop_all(self) -> None:
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
