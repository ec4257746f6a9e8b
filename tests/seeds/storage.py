#!/usr/bin/env python3
"""The fourth seed's step 4.1: host and sandbox on one S3 bucket, and no key of it inside.

    sudo python3 tests/seeds/storage.py --isopod target/debug/isopod

ROMA's imports are replaced by REST calls and by the official SDK (e2b-code-interpreter). The bucket is moto's, which is
installed under the cache if it is not there.
"""

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sdk"))

from harness.packages import moto_server, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

BUCKET = "roma-storage"
EXECUTION = "test_e2b_001"
# moto requires a signature, but does not check it.
SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
SDK_VERSION = "2.11.5"
INSIDE = Path(__file__).resolve().parent / "storage_inside.py"
PLAIN = Path(__file__).resolve().parent / "plain_inside.py"
SETTINGS = '[files]\ndefault_mount = "shared-{team}"\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    options = parser.parse_args()
    keys = {"AWS_ACCESS_KEY_ID": "AKIA" + secrets.token_hex(8).upper(), "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20)}
    moto, endpoint = start_moto()
    variables = {"ROMA_S3_BUCKET": BUCKET, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", **keys}
    server = Server(options.isopod, prepare="code-interpreter-v1", options=[], variables=variables)
    (server.home / "isopod.toml").write_text(SETTINGS)
    server.options = ["--config", str(server.home / "isopod.toml")]
    try:
        http("PUT", f"{endpoint}/{BUCKET}")
        server.start()
        server.wait_for_template("code-interpreter-v1")
        step_4_1(server)
        wait_for_object(endpoint, f"executions/{EXECUTION}/artifacts/test.txt", b"Hello from host!")
        no_key_inside(server, keys)
        official_sdk(server, keys)
        wait_for_object(endpoint, f"executions/{EXECUTION}/results/from_sdk.txt", b"Hello from the sandbox!")
        plain_sdk(server, keys, endpoint)
        rest(server, "DELETE", "/toolkit")
    finally:
        problems = server.stop()
        moto.terminate()
        moto.wait()
    if problems:
        sys.exit("\n".join(problems))
    print("seed 4, step 4.1: as printed")


def step_4_1(server):
    """As in the seed: write on the host, read in the sandbox, print the result."""
    written = rest(server, "PUT", "/files/test.txt", b"Hello from host!")
    path = f"/opt/sentient/executions/{EXECUTION}/artifacts/test.txt"
    assert written["path"] == path, written
    code = f"""
import os
file_path = '{path}'
print(f'Reading from: {{file_path}}')
with open(file_path, 'r') as f:
    content = f.read()
    print(f'Content: {{content}}')
"""
    result = tool(server, "run_python_code", code=code)
    print(json.dumps(result, indent=2))
    expected = {
        "success": True,
        "results": [],
        "stdout": [f"Reading from: {path}", "Content: Hello from host!"],
        "stderr": [],
        "error": None,
    }
    for name, value in expected.items():
        assert result[name] == value, (name, result)
    assert result["sandbox_id"] and result["ok"] and not result["restarted"], result
    status = tool(server, "get_sandbox_status")
    assert status["status"] == "running" and status["storage"]["healthy"], status
    # The other way round: at once, without waiting.
    tool(server, "run_python_code", code=f"open('/opt/sentient/executions/{EXECUTION}/outputs/o.bin','wb').write(bytes(range(256)))")
    assert rest(server, "GET", "/files/outputs/o.bin", raw=True) == bytes(range(256))
    info = rest(server, "GET", "/info")
    assert (info["file_count"], info["total_size_bytes"]) == (2, 272), info


def no_key_inside(server, keys):
    """Not in the environment, not in /proc, not in a file, not even for root."""
    secret = keys["AWS_SECRET_ACCESS_KEY"]
    # The parts are joined inside, so that the search does not find itself.
    search = f"""
import os, subprocess
needle = {secret[:20]!r} + {secret[20:]!r}
script = '''
import sys, os
needle = sys.stdin.read().strip().encode()
found = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('environ', 'cmdline', 'mounts', 'mountinfo'):
        try:
            if needle in open(f'/proc/{{pid}}/{{name}}', 'rb').read(): found.append(f'/proc/{{pid}}/{{name}}')
        except OSError: pass
for top in ('/etc', '/home', '/opt', '/tmp', '/root', '/run', '/var/lib/isopod'):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and needle in open(path, 'rb').read(): found.append(path)
            except OSError: pass
print(found, os.path.exists('/dev/fuse') and 'fuse device' or '')
'''
done = subprocess.run(['sudo', 'python3', '-c', script], input=needle, capture_output=True, text=True)
print(done.stdout.strip(), done.stderr.strip(), sorted(k for k in os.environ if k.startswith(('AWS_A', 'AWS_S', 'AWS_E')) or 'S3' in k))
"""
    result = tool(server, "run_python_code", code=search)
    assert result["ok"] and result["stdout"] == ["[]  []"], result
    others = tool(server, "run_command", command="ls /opt/sentient/executions; cat /proc/mounts | grep -c fuse")
    assert others["stdout"].split() == [EXECUTION, "1"], others


def official_sdk(server, keys):
    """A plain user of the SDK gets the same files by `execution_id`."""
    python = python_of(SDK_VERSION, "e2b-code-interpreter")
    environment = {key: value for key, value in server.environment().items() if key not in keys}
    done = subprocess.run([str(python), str(INSIDE), EXECUTION], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rest(server, "GET", "/files/results/from_sdk.txt", raw=True) == b"Hello from the sandbox!"


def plain_sdk(server, keys, endpoint):
    """A program that knows nothing of our metadata, and the seed's start-up script inside its sandboxes."""
    python = python_of(SDK_VERSION, "e2b-code-interpreter")
    environment = {key: value for key, value in server.environment().items() if key not in keys}
    words = [str(python), str(PLAIN), EXECUTION, BUCKET]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rest(server, "GET", "/files/results/plain.txt", raw=True) == b"by variables"
    shared = done.stdout.strip().removeprefix("/opt/sentient/")
    wait_for_object(endpoint, f"{shared}/outputs/note.txt", b"kept")
    listed = http("GET", f"{endpoint}/{BUCKET}?list-type=2", headers={"Authorization": SIGNED})
    assert b"<Key>" in listed and b".e2b_ready" not in listed, listed


def tool(server, name, **arguments):
    return rest(server, "POST", f"/toolkit/{name}", json.dumps(arguments).encode(), kind="application/json")


def rest(server, method, path, body=None, raw=False, kind="application/octet-stream"):
    headers = {"X-API-Key": server.key, "Content-Type": kind}
    answer = http(method, f"{server.url}/api/v1/executions/{EXECUTION}{path}", body, headers)
    return answer if raw or not answer else json.loads(answer)


def http(method, url, body=None, headers=None):
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=300) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {url}: {error.code} {error.read()[:500]}") from error


def wait_for_object(endpoint, key, content):
    """Uploads follow within a moment."""
    deadline = time.monotonic() + 60
    while True:
        try:
            found = http("GET", f"{endpoint}/{BUCKET}/{key}", headers={"Authorization": SIGNED})
            assert found == content, found
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def start_moto():
    program = moto_server()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([str(program), "-H", "127.0.0.1", "-p", str(port)], **quiet)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return server, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    server.kill()
    sys.exit("moto did not start")


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("this makes real sandboxes and must run as root")
    main()
