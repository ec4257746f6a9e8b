#!/usr/bin/env python3
"""Lets schemathesis try the API by its own description: no input may make the server fail.

    python3 tests/openapi/run.py --server target/debug/examples/fake_server

The server has sandboxes that run nothing, so that thousands of requests take seconds. What ends the sandbox or the key
that the other requests need comes in a second pass.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSION = "4.32.5"
KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
ENDING = ["DELETE /sandboxes/{id}", "POST /sandboxes/{id}/timeout", "DELETE /api-keys/{id}",
          "POST /api-keys/{id}/rotate", "DELETE /templates/{id}", "DELETE /api/v1/executions/{id}", "DELETE /api/v1/sandboxes/{id}"]
# They run until the client disconnects.
ENDLESS = ["GET /api/v1/sse"]
# Their bodies are archives, which the tool cannot create. The server's own tests send broken ones.
ARCHIVES = ["POST /isopod/templates/builds", "PUT /isopod/templates/{id}/builds/{build}/context"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, type=Path, help="a program that serves on the address it is given")
    parser.add_argument("--seconds", type=int, default=60, help="how long it tries in all")
    options = parser.parse_args()
    schemathesis = install()
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as place, open(Path(place) / "server.log", "wb") as log:
        server = subprocess.Popen([options.server.resolve(), address], stderr=log, stdout=log)
        try:
            wait_for(address)
            passed = [
                run(schemathesis, address, place, options.seconds * 5 // 6, "exclude"),
                run(schemathesis, address, place, options.seconds // 6, "include"),
            ]
            alive = server.poll() is None
        finally:
            server.kill()
            server.wait()
        if not alive or not all(passed):
            print(Path(log.name).read_text(errors="replace")[-5000:])
            sys.exit("the server did not withstand its own description")


def install():
    """The program, in an environment below the cache that is created once."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(base) / "isopod" / f"schemathesis-{VERSION}"
    ready = home / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"schemathesis=={VERSION}"], check=True)
        ready.touch()
    return home / "bin" / "schemathesis"


def run(schemathesis, address, place, seconds, endings):
    settings = Path(place) / "schemathesis.toml"
    volume = call(address, "POST", "/volumes", {"name": f"v-{endings}"})
    settings.write_text(known_ids(address, volume["volumeID"]))
    command = [
        *(str(schemathesis), "--config-file", str(settings), "run", f"http://{address}/openapi.json"),
        *("-H", f"X-API-Key: {KEY}", "-H", f"Authorization: Bearer {volume['token']}"),
        *("--checks", "no_failure_of_the_server", "--continue-on-failure"),
        # One worker: with two, threads of the tool itself interfere with each other now and then.
        *("--max-examples", "25", "--max-time", str(seconds), "--workers", "1"),
        *("--request-timeout", "10", "--generation-database", "none", "--warnings", "off", "--no-color"),
        *(f"--{endings}-name={name}" for name in ENDING),
        *(f"--exclude-name={name}" for name in ENDLESS + ARCHIVES),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "checks", "PYTHONPATH": str(HERE)}
    return subprocess.run(command, cwd=place, env=environment).returncode == 0


def known_ids(address, volume):
    """Settings by which requests name existing resources."""
    sandbox = call(address, "POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600})["sandboxID"]
    webhook = {"name": "x", "url": "https://1.1.1.1/", "events": ["sandbox.lifecycle.created"], "enabled": False}
    webhook = call(address, "POST", "/events/webhooks", {**webhook, "signatureSecret": "s" * 32})["id"]
    service = call(address, "POST", "/api/v1/sandboxes", {"agent_id": "a", "task_id": "t", "timeout": 3600})["id"]
    agent = call(address, "POST", "/api/v1/agents", {"name": "one"})["id"]
    task = call(address, "POST", "/api/v1/tasks", {"title": "one"})["id"]
    known = {"/api/v1/sandboxes/{id}": service, "/api/v1/git/{id}": service, "/api/v1/agents/{id}": agent, "/api/v1/tasks/{id}": task}
    template = call(address, "POST", "/v3/templates", {"name": "probe"})["templateID"]
    call(address, "PUT", "/api/v1/executions/e1")
    known |= {"/sandboxes/{id}": sandbox, "/events/webhooks/{id}": webhook, "/templates/": template}
    known |= {"/api/v1/executions/{id}": "e1", "/volumecontent/{id}": volume}
    paths = call(address, "GET", "/openapi.json")["paths"]
    lines = []
    for path, methods in paths.items():
        found = next((value for part, value in known.items() if part in path and "{id}" in path), None)
        for method in methods if found else []:
            lines += ["[[operations]]", f'include-name = "{method.upper()} {path}"', f'parameters = {{ id = "{found}" }}']
    return "\n".join(lines) + "\n"


def call(address, method, path, body=None):
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", method=method, data=data, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as response:
        return json.load(response)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(address):
    host, port = address.split(":")
    for _ in range(200):
        try:
            return socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.05)
    sys.exit("the server did not start")


main()
