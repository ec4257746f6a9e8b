"""A stream as a client without a browser sees it: noVNC's page over HTTPS, and VNC's protocol in a WebSocket."""

import base64
import os
import socket
import ssl
import struct
import urllib.parse


def fetch(url):
    """Status and text of a page."""
    with _connection(url) as connection:
        answer = _request(connection, url, urllib.parse.urlsplit(url).path, ["Connection: close"])
        head, _, body = answer.read().decode(errors="replace").partition("\r\n\r\n")
        return int(head.split()[1]), body


def first_message(url):
    """What the VNC server says first: its version."""
    with _connection(url) as connection:
        return _read(_websocket(connection, url))


def security_types(url):
    """What the VNC server asks for: 1 is nothing, and 2 a password."""
    with _connection(url) as connection:
        stream = _websocket(connection, url)
        version = _read(stream)
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(version))
        connection.sendall(bytes([0x82, 0x80 | len(version)]) + mask + masked)
        types = _read(stream)
        return list(types[1 : 1 + types[0]])


def _connection(url):
    """The names of sandboxes are below `localhost`, which not every resolver knows. The authority is tested elsewhere."""
    place = urllib.parse.urlsplit(url)
    assert place.scheme == "https" and place.hostname.endswith(".localhost"), url
    trusting = ssl._create_unverified_context()
    plain = socket.create_connection(("127.0.0.1", place.port), timeout=30)
    return trusting.wrap_socket(plain, server_hostname=place.hostname)


def _request(connection, url, path, headers):
    lines = [f"GET {path} HTTP/1.1", f"Host: {urllib.parse.urlsplit(url).netloc}", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return connection.makefile("rb")


def _websocket(connection, url):
    key = base64.b64encode(os.urandom(16)).decode()
    headers = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
    stream = _request(connection, url, "/websockify", [*headers, "Sec-WebSocket-Protocol: binary"])
    status = stream.readline()
    assert b" 101 " in status, status
    while stream.readline().strip():
        pass
    return stream


def _read(stream):
    """One short message."""
    first, length = stream.read(2)
    assert first == 0x82, f"not a binary message: {first:#x}"
    if length == 126:
        (length,) = struct.unpack(">H", stream.read(2))
    return stream.read(length)
