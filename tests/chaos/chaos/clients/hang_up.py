"""A client that requests a sandbox and disconnects before the response."""

import json
import socket
import time

from chaos.server import Server


DEADLINE = 40.0


def create_and_leave(server: Server, wanted: dict, wait: float) -> str | None:
    """Closes its side after some seconds, but keeps reading. Returns the id of the sandbox if the response came anyway."""
    body = json.dumps(wanted).encode()
    head = (
        f"POST /sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(wait)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
    except OSError:
        pass
    return sandbox_in(answer)


def sandbox_in(answer: bytes) -> str | None:
    """Returns the id in a complete response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        return json.loads(body)["sandboxID"] if head.startswith(b"HTTP/1.1 201 ") else None
    except ValueError:
        return None
