"""An application written for E2B, of any age. It knows only the key in its environment."""

import time
import urllib.request
from importlib.metadata import version

from e2b_code_interpreter import Sandbox


def fetch(url):
    """Returns what the sandbox serves, as soon as it does."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


# `create` exists since version 2.
sandbox = Sandbox.create() if version("e2b") >= "2" else Sandbox()
try:
    print(sandbox.run_code("40 + 2").text)
    print(sandbox.commands.run("echo from a command").stdout.strip())
    sandbox.files.write("/tmp/note.txt", "from a file")
    print(sandbox.files.read("/tmp/note.txt"))
    sandbox.commands.run("cd /tmp && python3 -m http.server 8000", background=True)
    print(fetch(f"https://{sandbox.get_host(8000)}/note.txt"))
finally:
    sandbox.kill()
