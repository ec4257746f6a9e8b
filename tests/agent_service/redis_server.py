"""A Redis of a case: on a port and behind a password that a URL names."""

import socket
import subprocess
import tempfile
import time
from urllib.parse import unquote, urlsplit


class Redis:
    def __init__(self, url, password=None):
        place = urlsplit(url)
        self.port = place.port
        self.password = password or unquote(place.password)

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory()
        words = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", self.place.name]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        self.process = subprocess.Popen([*words, "--requirepass", self.password], **streams)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise AssertionError("redis-server does not answer")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.place.cleanup()
