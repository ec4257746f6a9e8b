"""A `ProxyCommand` of ssh: standard input and output, as binary WebSocket messages to a port of a sandbox.

    python runner/tunnel.py HOST

HOST is what `get_host` returned. The connection goes to the server's edge, as a browser's would.
"""

import os
import socket
import struct
import sys
import threading
import urllib.parse

BINARY, CLOSE, PING, PONG = 2, 8, 9, 10


def main():
    channel = connect(sys.argv[1])
    threading.Thread(target=send_input, args=(channel,), daemon=True).start()
    receive(channel.makefile("rb"), channel)


def connect(host):
    where = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"])
    channel = socket.create_connection((where.hostname, where.port))
    fields = ["GET / HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: binary"]
    channel.sendall("\r\n".join([*fields, "", ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        part = channel.recv(1)
        if not part:
            break
        head += part
    if b" 101 " not in head:
        sys.exit(f"no tunnel: {head.decode(errors='replace')}")
    return channel


def send_input(channel):
    while data := os.read(0, 32768):
        channel.sendall(frame(BINARY, data))
    channel.sendall(frame(CLOSE, b""))


def frame(kind, data):
    """A whole message of less than 64 KiB. Clients must mask; a mask of zeros leaves the data as it is."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(data))
    return bytes([0x80 | kind]) + size + bytes(4) + data


def receive(stream, channel):
    while len(head := stream.read(2)) == 2:
        kind, size = head[0] & 15, head[1] & 127
        if size > 125:
            size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
        data = stream.read(size)
        if kind == CLOSE:
            return
        if kind == PING:
            channel.sendall(frame(PONG, data))
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
