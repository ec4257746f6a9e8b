"""A server that answers what the SDK asks from memory: the least that any server can take.

It also serves /small and /big/<MiB>, to measure a proxy with. Prints its port.
"""

import asyncio
import json
import socket
import struct
import sys

SANDBOX = {
    "sandboxID": "i" + "a" * 20,
    "templateID": "base",
    "alias": "base",
    "clientID": "x",
    "envdVersion": "0.6.13",
    "envdAccessToken": "token",
    "trafficAccessToken": None,
    "domain": "localhost",
}
LISTED = {
    "sandboxID": "i" + "a" * 20,
    "templateID": "base",
    "alias": "base",
    "clientID": "x",
    "envdVersion": "0.6.13",
    "startedAt": "2026-01-01T00:00:00Z",
    "endAt": "2026-01-01T01:00:00Z",
    "cpuCount": 2,
    "memoryMB": 512,
    "diskSizeMB": 512,
    "metadata": {},
    "state": "running",
}
PIECE = bytes(1 << 18)


def frame(flags, message):
    text = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(text)) + text


EVENTS = (
    frame(0, {"event": {"start": {"pid": 1}}})
    + frame(0, {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}})
    + frame(2, {})
)


def reply(status, body, kind="application/json", extra=""):
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


CREATED = reply("201 Created", json.dumps(SANDBOX).encode())
STARTED = reply("200 OK", EVENTS, "application/connect+json")
KILLED = b"HTTP/1.1 204 No Content\r\n\r\n"
SMALL = reply("200 OK", b"ok", "text/plain")
PAGE = json.dumps([LISTED] * 100).encode()


def list_page(path):
    page = int(path.split("nextToken=p")[1].split("&")[0]) if "nextToken=p" in path else 1
    more = f"x-next-token: p{page + 1}\r\n" if page < 10 else ""
    return reply("200 OK", PAGE, extra=more)


class Server(asyncio.Protocol):
    def connection_made(self, transport):
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport
        self.buffer = b""
        self.may_write = asyncio.Event()
        self.may_write.set()

    def pause_writing(self):
        self.may_write.clear()

    def resume_writing(self):
        self.may_write.set()

    def connection_lost(self, error):
        self.may_write.set()

    def data_received(self, data):
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            if b"transfer-encoding: chunked" in head:
                stop = self.buffer.find(b"0\r\n\r\n", end)
                if stop < 0:
                    return
                total = stop + 5
            else:
                total = end + 4
                if b"content-length:" in head:
                    total += int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                if len(self.buffer) < total:
                    return
            line = self.buffer[: self.buffer.find(b"\r\n")].decode()
            self.buffer = self.buffer[total:]
            method, path, _ = line.split(" ", 2)
            self.answer(method, path)

    def answer(self, method, path):
        if path == "/small":
            self.transport.write(SMALL)
        elif path.startswith("/big/"):
            asyncio.ensure_future(self.send_big(int(path[5:])))
        elif method == "DELETE":
            self.transport.write(KILLED)
        elif method == "GET" and path.startswith("/v2/sandboxes"):
            self.transport.write(list_page(path))
        elif path.endswith("/Start"):
            self.transport.write(STARTED)
        else:
            self.transport.write(CREATED)

    async def send_big(self, mib):
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {mib << 20}\r\n\r\n"
        self.transport.write(head.encode())
        for _ in range(mib * 4):
            await self.may_write.wait()
            if self.transport.is_closing():
                return
            self.transport.write(PIECE)


async def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
