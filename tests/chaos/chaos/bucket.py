"""An S3 bucket that can be cut off: moto behind a proxy."""

import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from harness.packages import moto_server

from chaos.proxy import Proxy

NAME = "chaos"
# moto requires a signature, but does not check it.
_SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"


class Bucket:
    def open(self) -> None:
        self._port = free_port()
        command = [str(moto_server()), "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self._port, 60)
        self.proxy = Proxy(("127.0.0.1", self._port))
        self._ask("PUT", "")

    def variables(self) -> dict[str, str]:
        """The settings for a server that uses it through the proxy."""
        keys = {"AWS_ACCESS_KEY_ID": "AKIACHAOS", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20)}
        return {
            "ROMA_S3_BUCKET": NAME,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_REGION": "us-east-1",
            **keys,
        }

    def read(self, key: str) -> bytes | None:
        """Reads an object without the proxy. None if there is none."""
        try:
            return self._ask("GET", "/" + urllib.parse.quote(key))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def close(self) -> None:
        self.proxy.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, method: str, path: str) -> bytes:
        url = f"http://127.0.0.1:{self._port}/{NAME}{path}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": _SIGNED})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return answer.read()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def wait_for_port(port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing listens on port {port}") from None
            time.sleep(0.05)
