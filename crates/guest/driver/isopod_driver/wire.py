"""The two framings: packets with descriptors (forkserver, zygote) and lines of JSON (kernel, bridge).

A line is written completely or not at all: an interrupt that arrives meanwhile is delivered afterwards.
"""

import array
import fcntl
import json
import os
import socket
import sys
import termios
from os import getpid
from threading import Lock
from time import monotonic, sleep

from . import pristine

__builtins__ = pristine.BUILTINS

PACKET_BYTES = 64 * 1024
PACKET_FDS = 64
FD_SIZE = array.array("i").itemsize
FD_SPACE = socket.CMSG_LEN(PACKET_FDS * FD_SIZE)
# The driver opens only a few descriptors before user code runs.
MAX_FD = 4096
# How long to wait for a guest that does not read, after a displayed result.
READ_SECONDS = 5.0


def send_packet(connection, message):
    connection.send(json.dumps(message).encode())


def receive_packet(connection):
    """One message and its descriptors, or (None, []) if the other side is gone."""
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
    """Closes every descriptor of this process except these."""
    lowest = 0
    for fd in sorted(kept):
        if lowest < fd:
            # Never pass an empty range: some versions of Python would close all descriptors.
            os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, MAX_FD)


class Lines:
    """Newline-delimited JSON on a stream socket, used by one process only."""

    def __init__(self, connection, interrupts, on_gone):
        self.connection = connection
        # Called when the guest has closed its end; does not return.
        self.on_gone = on_gone
        self.interrupts = interrupts
        self.owner = getpid()
        self.received = bytearray()
        # Arrived with what was received, and are not yet taken.
        self.descriptors = []
        # Guards writing: threads of user code may display values at the same time.
        self.writing = Lock()

    def continue_on(self, connection):
        """Goes on with another stream, in a copy of the process. A thread that the copy does not have may hold the lock."""
        self.connection = connection
        self.owner = getpid()
        self.received = bytearray()
        self.writing = Lock()

    def send(self, event):
        """Writes one event. Does nothing in a child that user code forked: that is not the kernel."""
        if getpid() != self.owner:
            return
        line = pristine.encode(event).encode() + b"\n"
        with self.interrupts.held_back(), self.writing:
            try:
                self.connection.sendall(line)
            except (BrokenPipeError, ConnectionResetError):
                self.on_gone()

    def wait_until_passed_on(self):
        """Waits until the guest has forwarded what was sent. It handles lines in order: when it has read the next one, an empty
        event that it drops, it is done with the one before."""
        self.wait_until_read()
        self.send({})
        self.wait_until_read()

    def wait_until_read(self):
        """Waits until the guest has read what was sent, but only a few seconds. Ends early on an interrupt."""
        deadline = monotonic() + READ_SECONDS
        pause = 0.00005
        while getpid() == self.owner and self.unread() and monotonic() < deadline:
            sleep(pause)
            pause = min(pause * 2, 0.002)

    def unread(self):
        try:
            return int.from_bytes(fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4), sys.byteorder)
        except OSError:
            return 0

    def receive(self):
        """The next object, or None at the end of the stream. Skips everything that is not an object."""
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
            data, ancillary, _flags, _address = self.connection.recvmsg(1 << 20, FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return b""
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors += array.array("i", content[: len(content) // FD_SIZE * FD_SIZE])
        return data

    def take_descriptors(self):
        """Those that came with the last message."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def close(self):
        self.connection.close()


def parse_object(line):
    try:
        message = pristine.decode(line.decode())
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
