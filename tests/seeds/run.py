#!/usr/bin/env python3
"""The flow at the end of the first seed, step by step: with the official SDK and Redis, through our REST, and mixed.

    python3 tests/seeds/run.py --isopod target/debug/isopod

Needs root and redis-server. With ISOPOD_FULL=1 the package that is installed comes from the network. Afterwards nothing of the
server may be left on the host. The last line is `N passed, N failed`.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "sdk"))

from harness.packages import _once, cache_root  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-v1"
PACKAGES = ["e2b-code-interpreter==2.11.5", "redis==7.1.0"]
PAGE = HERE.parents[1] / "docs" / "runs.md"

WHEEL = """
import zipfile
with zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('tiny.py', 'answer = 42')
    wheel.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')
    wheel.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('tiny-1.0.dist-info/RECORD', '')
"""
FROM_FILE = WHEEL + "\n!pip install --quiet --no-index ./tiny-1.0-py3-none-any.whl", "import tiny; tiny.answer", "42"
FROM_NETWORK = "!pip install --quiet humanize", "import humanize; humanize.intcomma(1000)", "'1,000'"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    options = parser.parse_args()
    python = environment()
    passed, problems = 0, []
    with Redis() as redis:
        os.environ["REDIS_URL"] = redis.url
        os.environ.pop("RFS_BASE", None)
        server = Server(options.isopod.resolve(), prepare=TEMPLATE)
        try:
            server.start()
            server.wait_for_template(TEMPLATE)
            for flow in (with_the_sdk, through_rest, both_at_once, the_page):
                flow(server, redis, python)
                print(f"ok {flow.__name__}", flush=True)
                passed += 1
        except Exception:
            # Later flows expect a server without sandboxes.
            problems.append(f"{traceback.format_exc()}{server.tail()}")
        finally:
            problems += server.stop()
    for problem in problems:
        print(f"FAILED {problem}")
    print(f"{passed} passed, {len(problems)} failed")
    sys.exit(1 if problems else 0)


def package():
    """What to install, what to run then, and the expected result."""
    return FROM_NETWORK if os.environ.get("ISOPOD_FULL") == "1" else FROM_FILE


def with_the_sdk(server, redis, python):
    """Every call connects to the sandbox that Redis names, or creates one. The end kills it."""
    install, use, answer = package()
    assert redis.ask("EXISTS", "raro:e2b_session:sdk-run") == "0"
    first = agent(server, python, "sdk-run", "execute", install)
    assert first["new"] and not first["error"], first
    assert redis.ask("GET", "raro:e2b_session:sdk-run") == first["sandbox"]
    second = agent(server, python, "sdk-run", "execute", use)
    assert second == {"sandbox": first["sandbox"], "new": False, "text": answer, "error": None}, second
    ended = agent(server, python, "sdk-run", "kill")
    assert ended == {"sandbox": first["sandbox"], "killed": True}, ended
    nothing_left(server)


def through_rest(server, redis, _):
    install, use, answer = package()
    first = execute(server, "rest-run", install, "agent-1")
    assert first["success"], first
    assert redis.ask("GET", "raro:e2b_session:rest-run") == first["sandbox_id"]
    second = execute(server, "rest-run", use, "agent-2")
    assert second["output"]["results"][0]["text"] == answer, second
    assert second["sandbox_id"] == first["sandbox_id"] and not second["restarted"], second
    for killed in (True, False):
        ended = call(server, "DELETE", "/runtime/rest-run/cleanup")
        assert len(ended.pop("sandbox_ids")) == killed, ended
        assert ended == {"status": "cleaned", "run_id": "rest-run", "killed": killed}, ended
    assert redis.ask("EXISTS", "raro:e2b_session:rest-run") == "0"
    nothing_left(server)


def both_at_once(server, redis, python):
    """An agent with the SDK and one through REST share a sandbox, whichever created it."""
    made = execute(server, "mixed-1", "x = 1")
    seen = agent(server, python, "mixed-1", "execute", "x + 1")
    assert (seen["sandbox"], seen["text"]) == (made["sandbox_id"], "2"), seen
    call(server, "DELETE", "/cleanup/mixed-1")
    made = agent(server, python, "mixed-2", "execute", "x = 2")
    seen = execute(server, "mixed-2", "x + 1")
    assert seen["sandbox_id"] == made["sandbox"] and seen["output"]["results"][0]["text"] == "3", seen
    assert call(server, "DELETE", "/cleanup/mixed-2")["killed"]
    assert redis.ask("EXISTS", "raro:e2b_session:mixed-2") == "0"
    made = agent(server, python, "mixed-3", "execute", "x = 3")
    assert call(server, "DELETE", "/cleanup/mixed-3")["sandbox_ids"] == [made["sandbox"]]
    assert redis.ask("EXISTS", "raro:e2b_session:mixed-3") == "0"
    nothing_left(server)


def the_page(server, *_):
    """The example of docs/runs.md, unchanged."""
    lines = re.search(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)[1].splitlines()
    said = []
    for line in lines:
        done = subprocess.run(["bash", "-c", line.removeprefix("$ ")], env=server.environment(), capture_output=True)
        said.append(json.loads(done.stdout))
    assert said[1]["output"]["results"][0]["text"] == "42" and said[2]["killed"], said
    nothing_left(server)


def agent(server, python, *words):
    environment = server.environment() | {"REDIS_URL": os.environ["REDIS_URL"]}
    done = subprocess.run([python, HERE / "agent.py", *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def execute(server, run, code, agent_id=None):
    body = {"code": code} | ({"agent_id": agent_id} if agent_id else {})
    return call(server, "POST", f"/runtime/{run}/execute", body)


def call(server, method, path, body=None):
    headers = {"X-API-Key": server.key, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}{path}", method=method, data=data, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as response:
        return json.load(response)


def nothing_left(server):
    left = call(server, "GET", "/v2/sandboxes")
    assert left == [], left


def environment():
    """Python with the official packages, created once."""
    home = cache_root() / "seed-000"

    def install():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)

    _once(home, install)
    return home / "bin" / "python"


class Redis:
    """Our own server on loopback, in its own directory."""

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.place = tempfile.TemporaryDirectory()
        self.url = f"redis://127.0.0.1:{self.port}"
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", self.place.name]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            sys.exit("redis-server is needed: apt-get install redis-server")
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.02)
        sys.exit("redis-server does not answer")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.place.cleanup()

    def ask(self, *words):
        done = subprocess.run(["redis-cli", "-p", str(self.port), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()


main()
