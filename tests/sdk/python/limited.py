"""A team's limit that only one case meets: the cases run side by side in one team, whose own limit would stop the others too."""

import contextlib
import http.server
import json
import os
import threading

from kit import fetch

LIMIT = "you have reached the maximum number of concurrent sandboxes (3)"


@contextlib.contextmanager
def one_copy_fewer():
    """The URL of an API whose forks have one copy fewer than asked for, and in its place what a server says at the limit."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Relay) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{relay.server_address[1]}"
        finally:
            relay.shutdown()


class _Relay(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked["count"] -= 1
        headers = {"X-API-Key": self.headers["X-API-Key"], "Content-Type": "application/json"}
        status, _, body = fetch(os.environ["E2B_API_URL"] + self.path, "POST", json.dumps(asked).encode(), headers)
        if status == 201:
            body = json.dumps([*json.loads(body), {"error": {"code": 429, "message": LIMIT}}]).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
