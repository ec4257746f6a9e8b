"""A sandbox, as the cases see it: shell lines as root and as `user`, files, and ports through the server's edge."""

import os
import re
import shlex
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

from e2b import CommandExitException, Sandbox, Template

from runner.outcome import Unreachable

URL = os.environ["E2B_SANDBOX_URL"]
LIFETIME = 1500
INSTALL_DEADLINE = 600
# What apt, npm, pip and others print when a host or package is out of reach.
OUT_OF_REACH = re.compile(
    r"Temporary failure resolving|Could not resolve|Could not connect|Failed to fetch|Unable to locate package|"
    r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|npm error code E40[034]|No matching distribution|"
    r"Connection refused|Network is unreachable|status code 40[034]|server returned code 40[034]|curl: \((5|6|7|22|28|35|56)\)"
)


class Box:
    def __init__(self, features=(), memory=None, cpus=None):
        """`memory` is in MiB; without it, the sandbox has the memory and the CPUs that the server gives."""
        metadata = {"isopod.allow": ",".join(features)} if features else {}
        self.sandbox = Sandbox.create(base_with(memory, cpus), timeout=LIFETIME, metadata=metadata)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sandbox.kill()

    def sh(self, script, account="user", timeout=120, code=0):
        """Runs a shell script in the account's home. Returns what it printed, and fails unless it ends with `code`."""
        try:
            done = self.sandbox.commands.run(f"set -e\ncd\n{script}", user=account, timeout=timeout)
        except CommandExitException as ended:
            done = ended
        printed = f"{done.stdout}\n{done.stderr}"
        assert done.exit_code == code, f"as {account}, this ended with {done.exit_code}:\n{script}\n{printed[-3000:]}"
        return done.stdout

    def download(self, script, account="user"):
        """Runs a script that gets packages. Failing because they are out of reach is not failing."""
        try:
            return self.sh(script, account, INSTALL_DEADLINE)
        except AssertionError as error:
            if OUT_OF_REACH.search(str(error)):
                raise Unreachable(str(error)) from error
            raise

    def install(self, packages):
        """Installs packages of Debian, as people do: as `user`, with sudo."""
        if packages:
            self.download("sudo apt-get update -qq")
            apt = "sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"
            self.download(f"{apt} {' '.join(packages)} >/tmp/apt.log 2>&1 || {{ cat /tmp/apt.log; exit 1; }}")

    def start(self, command, account="user"):
        """Starts a program that keeps running, in the account's home instead of the template's directory."""
        return self.sandbox.commands.run(f"cd; {command}", background=True, user=account, timeout=0)

    def write(self, path, text, account="user"):
        """Writes a file. Relative paths start in the account's home."""
        self.sandbox.files.write(path, text, user=account)

    def read_bytes(self, path, account="user"):
        return bytes(self.sandbox.files.read(path, format="bytes", user=account))

    def uid(self, account):
        return int(self.sh("id -u", account))

    def until(self, script, account="user", seconds=60):
        """Waits until a script succeeds. Returns what it printed."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.sh(script, account)
            except AssertionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.3)

    def get(self, port, path="/", seconds=60):
        """The body of a page of a port, from outside: by the host name of the port, at the server's edge."""
        end = time.monotonic() + seconds
        while True:
            status, body = self._fetch(port, path)
            if status == 200:
                return body
            assert time.monotonic() < end, f"port {port} answers {status}: {body[:1000]}"
            time.sleep(0.3)

    def _fetch(self, port, path):
        request = urllib.request.Request(URL + path, headers={"Host": self.sandbox.get_host(port)})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def connect(self, port):
        """A TCP connection to the server's edge, and the host name that leads to the port."""
        where = urllib.parse.urlsplit(URL)
        return socket.create_connection((where.hostname, where.port), timeout=30), self.sandbox.get_host(port)


def base_with(memory, cpus):
    """The name of a template that is `base` with so much memory, and so many CPUs or two."""
    if memory is None:
        return None
    name = f"base-{memory}-{cpus or 2}"
    Template.build(Template().from_template("base"), name, memory_mb=memory, cpu_count=cpus or 2)
    return name


def quoted(text):
    return shlex.quote(text)
