"""The server under test: started, killed, restarted on the same state directory, and removed at the end."""

import json
import os
import re
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from harness.packages import cache_root

from chaos.bucket import free_port
from chaos.outages import Outages

# Longer than that is a violation, whatever else is down.
LISTEN_DEADLINE = 30.0
STOP_DEADLINE = 60.0
TEMPLATE_DEADLINE = 900.0
INTERPRETER = "code-interpreter-v1"


class Server:
    def __init__(self, isopod: Path, state: Path, log: Path, outages: Outages) -> None:
        self.isopod, self.state, self.log = str(isopod), state, log
        self.outages = outages
        self.key = "e2b_" + secrets.token_hex(20)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.options: list[str] = []
        self.variables: dict[str, str] = {}
        self.process: subprocess.Popen | None = None
        self.starts = 0
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def prepare(self) -> None:
        """Built templates are kept between runs, outside of the state directory, because building one takes a minute."""
        shared = cache_root().parent / "templates"
        shared.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "templates").symlink_to(shared)

    def launch(self) -> None:
        """Starts it without waiting."""
        command = [self.isopod, "--state-dir", str(self.state), "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--prepare", INTERPRETER, "--pool-ready", "2", "--pool-prepared", "3", *self.options]
        environment = os.environ | self.variables | {"ISOPOD_API_KEY": self.key}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.starts += 1

    def kill(self) -> bool:
        """Kills it with -9. Until it listens again, clients have an excuse."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.outages.begin("server")
        self.process.kill()
        self.process.wait()
        return True

    def describe(self) -> str:
        return "not started" if self.process is None else f"process {self.process.pid}, exit status {self.process.poll()}"

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def wait_until_it_listens(self, seconds: float = LISTEN_DEADLINE) -> bool:
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            if self.has_ended() or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        self.outages.end("server")
        return True

    def is_healthy(self) -> bool:
        try:
            return self._opener.open(f"{self.url}/health", timeout=2).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def wait_for_template(self, name: str = INTERPRETER) -> None:
        end = time.monotonic() + TEMPLATE_DEADLINE
        while time.monotonic() < end:
            found = [one for one in self.get("/templates") if name in one["names"]]
            if found and found[0]["buildStatus"] == "ready":
                return
            time.sleep(0.5)
        raise RuntimeError(f"template {name} did not get ready:\n{self.tail()}")

    def get(self, path: str):
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: dict | None = None, timeout: float = 30):
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-API-Key": self.key, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=headers)
        with self._opener.open(request, timeout=timeout) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def terminate(self) -> list[str]:
        if self.process is None or self.has_ended():
            # A failed start was reported when it was found.
            return [] if self.outages.is_away("server") else [f"the server had ended by itself:\n{self.tail()}"]
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return [f"SIGTERM did not end the server in {STOP_DEADLINE:.0f} s"]
        return [] if code == 0 else [f"the server ended with {code} after SIGTERM:\n{self.tail()}"]

    def run(self, *words: str, timeout: float = 180) -> str | None:
        """Runs a command of the program on this state directory. Returns None on success, otherwise its output."""
        command = [self.isopod, "--state-dir", str(self.state), *words]
        environment = os.environ | self.variables
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)
        except subprocess.TimeoutExpired:
            return f"`isopod {' '.join(words)}` did not end within {timeout:.0f} s"
        return None if done.returncode == 0 else f"`isopod {' '.join(words)}` failed: {(done.stdout + done.stderr).strip()}"

    def environment(self) -> dict[str, str]:
        """The variables that the SDK reads."""
        return {"E2B_API_KEY": self.key, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}

    def tail(self, lines: int = 15) -> str:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
        return "\n".join(plain.splitlines()[-lines:])
