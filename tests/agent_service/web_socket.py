"""A caller at the WebSocket of the agent service, without a library: text frames, and whatever else a case wants to send."""

import base64
import json
import os
import socket
import struct
import urllib.parse

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
DEADLINE = 60


class Refused(Exception):
    """The service does not take the connection. Has the status of its answer."""


class WebSocket:
    def __init__(self, url, origin=None):
        place = urllib.parse.urlsplit(url)
        self.connection = socket.create_connection((place.hostname, place.port), timeout=DEADLINE)
        self.stream = self.connection.makefile("rb")
        lines = [f"GET {place.path} HTTP/1.1", f"Host: {place.netloc}", "Upgrade: websocket", "Connection: Upgrade",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        lines += [f"Origin: {origin}"] if origin else []
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode())
        status = int(self.stream.readline().split()[1])
        while self.stream.readline().strip():
            pass
        if status != 101:
            raise Refused(status)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hang_up()

    def send(self, message, kind=TEXT):
        """What is no text is sent as JSON."""
        data = message if isinstance(message, bytes) else (message if isinstance(message, str) else json.dumps(message)).encode()
        length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack("!H", len(data))
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
        self.connection.sendall(bytes([0x80 | kind]) + length + mask + masked)

    def message(self):
        """The next message, or None if the service has closed the connection."""
        while True:
            kind, data = self._frame()
            if kind == TEXT:
                return json.loads(data)
            if kind == CLOSE:
                return None
            assert kind == PING, (kind, data)

    def messages(self):
        """Everything until the service closes the connection."""
        return list(iter(self.message, None))

    def hang_up(self):
        """Without a word, as a program that is killed."""
        self.stream.close()
        self.connection.close()

    def _frame(self):
        first, length = self.stream.read(2)
        if length > 125:
            length = int.from_bytes(self.stream.read(2 if length == 126 else 8), "big")
        return first & 0x0F, self.stream.read(length)
