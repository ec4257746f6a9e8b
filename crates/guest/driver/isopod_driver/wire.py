"""The two framings: packets with descriptors (mother, zygote), and lines of JSON (kernel, bridge).

A line leaves whole or not at all: an interrupt that arrives while one is written is delivered after it.
"""

import fcntl
import json
import os
import socket
import sys
import termios
import threading
import time

PACKET_BYTES = 64 * 1024
PACKET_FDS = 64
# None of our processes opens more than a few before user code runs.
HIGHEST_FD = 4096
# How long a displayed result waits for a guest that does not read.
READ_SECONDS = 5.0


def send_packet(connection, message):
    connection.send(json.dumps(message).encode())


def receive_packet(connection):
    """One message and its descriptors, or (None, []) when the other side is gone."""
    data, fds = receive_bytes(connection)
    if not data:
        close_all(fds)
        return None, []
    try:
        message = json.loads(data)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        close_all(fds)
        return {"op": "malformed"}, []
    return message, fds


def receive_bytes(connection):
    try:
        data, fds, _flags, _address = socket.recv_fds(
            connection, PACKET_BYTES, PACKET_FDS, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return b"", []
    return data, fds


def close_all(fds):
    for fd in fds:
        os.close(fd)


def close_except(kept):
    """Closes every descriptor of this process but these."""
    lowest = 0
    for fd in sorted(kept):
        if lowest < fd:
            # An empty range is not passed on: some versions of Python take it for all there is.
            os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, HIGHEST_FD)


class Lines:
    """Newline-delimited JSON on a stream socket, used by one process only."""

    def __init__(self, connection, interrupts, on_gone):
        self.connection = connection
        # Called when nobody reads any more; does not return.
        self.on_gone = on_gone
        self.interrupts = interrupts
        self.owner = os.getpid()
        self.received = bytearray()
        # Guards writing: threads of user code may display things at the same time.
        self.writing = threading.Lock()

    def send(self, event):
        """Writes one event. A forked child of user code is not the kernel and says nothing here."""
        if os.getpid() != self.owner:
            return
        line = json.dumps(event).encode() + b"\n"
        with self.interrupts.held_back(), self.writing:
            try:
                self.connection.sendall(line)
            except (BrokenPipeError, ConnectionResetError):
                self.on_gone()

    def wait_until_passed_on(self):
        """Until the guest has passed on what was sent. It takes one line after the other: when it has taken the next
        one, which says nothing and goes nowhere, it is done with the one before."""
        self.wait_until_read()
        self.send({})
        self.wait_until_read()

    def wait_until_read(self):
        """Until the guest has taken what was sent, or for a moment if it is busy. Ends early on an interrupt."""
        deadline = time.monotonic() + READ_SECONDS
        pause = 0.00005
        while os.getpid() == self.owner and self.unread() and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, 0.002)

    def unread(self):
        try:
            return int.from_bytes(fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4), sys.byteorder)
        except OSError:
            return 0

    def receive(self):
        """The next object, or None at the end of the stream. What is not an object is skipped."""
        while True:
            end = self.received.find(b"\n")
            if end < 0:
                chunk = self.read_chunk()
                if not chunk:
                    return None
                self.received += chunk
                continue
            line = bytes(self.received[:end])
            del self.received[: end + 1]
            message = parse_object(line)
            if message is not None:
                return message

    def read_chunk(self):
        try:
            return self.connection.recv(1 << 20)
        except ConnectionResetError:
            return b""

    def close(self):
        self.connection.close()


def parse_object(line):
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
