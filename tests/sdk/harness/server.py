"""Our own `isopod serve`: started on a free port, stopped with SIGTERM, uninstalled, and checked for leftovers."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from harness.packages import cache_root
from harness.paths import names

START_DEADLINE = 120
STOP_DEADLINE = 60
SAVING = "--save-paused-after"


class Server:
    # What `/health` answers.
    HEALTHY = (200,)

    def __init__(self, isopod, tls=False, prepare="none", options=None, variables=None):
        self.isopod = str(isopod)
        self.tls = tls
        self.prepare = prepare
        self.variables = variables or {}
        self.home = Path(tempfile.mkdtemp(prefix="isopod-sdk-"))
        self.state = self.home / "state"
        # With CRIU, the memory of paused sandboxes goes to disk soon, so that cases see it there.
        self.saves_memory = bool(os.environ.get("ISOPOD_CRIU"))
        self.options = options if options is not None else self.usual_options()
        self.key = "e2b_" + secrets.token_hex(20)
        self.port = _free_port()
        self.authority = self.home / "ca.pem"
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.process = None
        self.tag = None

    def usual_options(self):
        saving = [SAVING, "1"] if self.saves_memory else []
        return ["--storage", f"dir:{self.home / 'bucket'}", *saving]

    def start(self):
        self._share_templates()
        if self.tls:
            self._make_certificates()
        self.log = open(self.home / "serve.log", "wb")
        self.launch()
        self.tag = (self.state / "tag").read_text().strip()

    def build_template(self, name, deadline=1500):
        """Builds a template before the start. Otherwise the server opens it when it has its first layer."""
        self._share_templates()
        command = [self.isopod, "--state-dir", str(self.state), "template", "build", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline)
        if done.returncode != 0:
            raise RuntimeError(f"template {name} could not be built:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")

    def package_differences(self):
        """The packages of the code interpreter's list that this host's Python cannot have in E2B's version: what it has instead, or
        None. By `isopod doctor`, so before the start. Fails if the template is not complete."""
        command = [self.isopod, "--state-dir", str(self.state), "doctor", "--json"]
        findings = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout)
        [finding] = [finding for finding in findings if finding["what"] == "interpreter"]
        differences = re.findall(r"(?:no (\S+)|(\S+) (\S+)) \(E2B: ", finding["detail"])
        assert (finding["verdict"] == "warn") == bool(differences), finding
        return {absent or name: found or None for absent, name, found in differences}

    def launch(self):
        """Starts the program and waits until it answers. Also for another start on the same state."""
        environment = os.environ | self.variables
        streams = {"stdout": self.log, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(self.command(), **streams, env=environment, start_new_session=True)
        deadline = time.monotonic() + START_DEADLINE
        while not self._is_healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self.tail()}")
            time.sleep(0.05)

    def kill(self):
        """Kills it, as a crash would."""
        self.process.kill()
        self.process.wait()

    def command(self):
        command = [self.isopod, "--state-dir", str(self.state), "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--api-key", self.key, "--prepare", self.prepare] + (["--tls"] if self.tls else [])
        return command + self.options

    def _share_templates(self):
        """Built templates are kept between runs, because building one takes a minute."""
        shared = cache_root().parent / "templates"
        shared.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        if not (self.state / "templates").is_symlink():
            (self.state / "templates").symlink_to(shared)

    def wait_for_template(self, name, deadline=900):
        """Waits until the pool has sandboxes of a template."""
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            request = urllib.request.Request(f"{self.url}/templates", headers={"X-API-Key": self.key})
            with self._opener().open(request, timeout=10) as answer:
                found = [one for one in json.load(answer) if name in one["names"]]
            if found and found[0]["buildStatus"] == "ready":
                return
            time.sleep(0.5)
        raise RuntimeError(f"template {name} did not get ready:\n{self.tail()}")

    def _make_certificates(self):
        program = [self.isopod, "--state-dir", str(self.state), "tls"]
        subprocess.run([*program, "init"], check=True, capture_output=True)
        self.authority.write_bytes(subprocess.run([*program, "ca"], check=True, capture_output=True).stdout)

    def _opener(self):
        trusted = ssl.create_default_context(cafile=str(self.authority)) if self.tls else None
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)]
        return urllib.request.build_opener(*handlers)

    def _is_healthy(self):
        try:
            return self._opener().open(f"{self.url}/health", timeout=2).status in self.HEALTHY
        except (urllib.error.URLError, OSError):
            return False

    def environment(self):
        """The variables that `serve` prints, the authority to trust with TLS, and nothing else that an SDK would read."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("E2B_") and not k.lower().endswith("_proxy")}
        if self.tls:
            clean |= {"SSL_CERT_FILE": str(self.authority), "NODE_EXTRA_CA_CERTS": str(self.authority)}
        if self.saves_memory:
            clean |= {"ISOPOD_SUITE_STATE": str(self.state)}
        clean |= {"ISOPOD_SUITE_PROGRAM": self.isopod}
        return clean | {"E2B_API_KEY": self.key, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url,
                        "E2B_VOLUME_API_URL": self.url}

    def tail(self):
        return "\n".join((self.home / "serve.log").read_text(errors="replace").splitlines()[-30:])

    def stop(self):
        """Ends it and removes all of it. Returns a list of errors and leftovers."""
        if self.process is None:
            shutil.rmtree(self.home, ignore_errors=True)
            return []
        cache_root().mkdir(parents=True, exist_ok=True)
        shutil.copy(self.home / "serve.log", cache_root() / f"serve-{'tls' if self.tls else 'http'}.log")
        problems = self._terminate() + self._uninstall() + self._residue()
        self.log.close()
        if problems:
            problems.append(f"the server's files are kept in {self.home}")
        else:
            shutil.rmtree(self.home)
        return problems

    def _terminate(self):
        if self.process.poll() is not None:
            return [f"the server ended by itself with {self.process.returncode}:\n{self.tail()}"]
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return [f"SIGTERM did not end the server in {STOP_DEADLINE} s"]
        return [] if code == 0 else [f"the server ended with {code}:\n{self.tail()}"]

    def _uninstall(self):
        command = [self.isopod, "--state-dir", str(self.state), "uninstall", "--yes"]
        done = subprocess.run(command, capture_output=True, text=True)
        return [] if done.returncode == 0 else [f"uninstall failed: {done.stdout}{done.stderr}"]

    def _residue(self):
        """Returns what is left of this state directory. The kernel takes a moment to release the last of it."""
        deadline = time.monotonic() + 10
        while True:
            found = self._look()
            if not found or time.monotonic() > deadline:
                return [f"left on the host: {what}" for what in found]
            time.sleep(0.1)

    def _look(self):
        found = [f"process {pid}" for pid in _processes_of(str(self.state))]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if names(line, self.state)]
        found += [str(path) for path in _cgroups(f"isopod-{self.tag}")]
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout.split()
        found += [f"nft table {name}" for name in tables if name == f"isopod-{self.tag}"]
        links = os.listdir("/sys/class/net")
        found += [f"interface {name}" for name in links if name.startswith(f"i{self.tag}-")]
        found += [f"loop device {device.name}" for device in Path("/sys/block").glob("loop*") if names(_backing_file(device), self.state)]
        if self.state.exists() and any(self.state.iterdir()):
            found.append(f"files in {self.state}: {sorted(p.name for p in self.state.iterdir())}")
        return found


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _processes_of(state):
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word == state or word.startswith(state + "/") for word in words):
            yield int(entry.name)


def _backing_file(device):
    try:
        return (device / "loop/backing_file").read_text()
    except OSError:
        return ""


def _cgroups(name):
    roots = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines() if " cgroup" in line]
    for root in roots:
        # Not `glob`, which fails if a directory of another server vanishes while it looks.
        yield from (Path(folder) / name for folder, directories, _ in os.walk(root) if name in directories)
