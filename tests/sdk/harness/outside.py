"""A piece of the outside world that is safe to talk to: a network namespace with two addresses of a block that is
kept for documentation, and a web server in it. Sandboxes reach it as they reach the internet; nothing leaves the host.
"""

import http.server
import os
import subprocess
import sys
import threading
import time
import urllib.request

HOST = "203.0.113.1"
FIRST = "203.0.113.2"
SECOND = "203.0.113.3"
PORT = 8099


class Outside:
    def __init__(self):
        self.namespace = f"sdk{os.getpid()}"
        self.link = f"sdk{os.getpid()}"[:15]
        self.process = None
        self.host_server = None

    def open(self):
        _remove_abandoned()
        inner = f"{self.link}i"[:15]
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", inner, "netns", self.namespace)
        _ip("address", "add", f"{HOST}/29", "dev", self.link)
        _ip("link", "set", self.link, "up")
        with open(f"/proc/sys/net/ipv4/conf/{self.link}/forwarding", "w") as switch:
            switch.write("1")
        inside = ["-n", self.namespace]
        for address in (FIRST, SECOND):
            _ip(*inside, "address", "add", f"{address}/29", "dev", inner)
        _ip(*inside, "link", "set", inner, "up")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "route", "add", "default", "via", HOST)
        self._serve()

    def _serve(self):
        """One server outside, and one on the host itself that no sandbox may reach."""
        # Only the network: a copy of the host's mounts would keep file systems busy that others unmount.
        command = ["nsenter", f"--net=/run/netns/{self.namespace}", sys.executable, __file__]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.host_server = http.server.ThreadingHTTPServer((HOST, PORT), _Empty)
        threading.Thread(target=self.host_server.serve_forever, daemon=True).start()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + 10
        while True:
            try:
                opener.open(f"http://{FIRST}:{PORT}/", timeout=2).read()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def environment(self):
        return {"SDK_OUTSIDE": f"{FIRST},{SECOND}", "SDK_OUTSIDE_PORT": str(PORT), "SDK_HOST": HOST}

    def close(self):
        if self.host_server is not None:
            self.host_server.shutdown()
            self.host_server.server_close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for what in (("link", "delete", self.link), ("netns", "delete", self.namespace)):
            subprocess.run(["ip", *what], capture_output=True)


class _Empty(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def _remove_abandoned():
    """Removes what a killed run left: its link has our address, and would get our packets."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith("sdk")):
        pid = name.removeprefix("sdk")
        if pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            for what in (("link", "delete", name[:15]), ("netns", "delete", name)):
                subprocess.run(["ip", *what], capture_output=True)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("0.0.0.0", PORT), _Empty).serve_forever()
