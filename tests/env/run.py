#!/usr/bin/env python3
"""Applications that pin an old or a new SDK of E2B, and old versions of E2B's CLI, run by `isopod env` with nothing but what it
gives them.

    python3 tests/env/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, Node 20, and pip and npm for the first run: the packages are kept in ~/.cache/isopod/sdk. The machine's own
resolver, hosts file and authorities must be as before all the time, and nothing of the server may be left afterwards.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "sdk"))

from harness.packages import node_project, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-v1"
# 1.x knows only addresses below e2b.app, and 2.x before 2.9 runs code only there.
PYTHON = ["1.5.2", "2.4.0", "2.8.1", "2.11.5"]
JS = [("e2b", "1.13.2"), ("e2b", "2.51.0"), ("@e2b/code-interpreter", "1.5.1"), ("@e2b/code-interpreter", "2.8.0")]
# 1.0 goes to e2b.dev, unless it is told a domain.
CLI = ["1.0.9", "1.5.2", "1.9.2"]
CLI_PARTS = [
    "a spawned terminal runs commands and ends with its sandbox",
    "a second terminal connects and the logs tell what ran",
    "a killed sandbox is gone",
    "a template is built by name listed spawned published and deleted",
]
PLAIN = ["from a command", "from a file", "from a file"]
UNCHANGED = ["/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"]
DEADLINE = 240


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.only or any(text in case[0] for text in options.only)]
    server, problems = Server(options.isopod.resolve(), prepare=TEMPLATE), []
    before = machine()
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        for name, prepare, expected in chosen:
            problems += check(server, name, prepare, expected, before)
    except Exception as error:
        problems.append(f"the run broke off: {error!r}\n{server.tail()}")
    finally:
        problems += server.stop()
    print(f"{len(chosen)} cases, {len(problems)} problems")
    if problems:
        sys.exit("\n".join(problems))


def cases():
    """Name, how to get the command, and the lines that it prints."""
    for version in PYTHON:
        yield f"python {version}", lambda _, version=version: python_app(version), ["42", *PLAIN]
    for package, version in JS:
        lines = ["42", *PLAIN] if "interpreter" in package else PLAIN
        yield f"{package} {version}", lambda place, p=package, v=version: node_app(place, p, v), lines
    for version in CLI:
        yield f"@e2b/cli {version}", lambda _, version=version: cli_day(version), CLI_PARTS


def python_app(version):
    return [str(python_of(version, "e2b-code-interpreter")), str(HERE / "app.py")]


def node_app(place, package, version):
    """Node.js looks for packages beside the program."""
    (place / "node_modules").symlink_to(node_project(package, version) / "node_modules")
    (place / "app.mjs").write_bytes((HERE / "app.mjs").read_bytes())
    return ["node", str(place / "app.mjs"), package]


def cli_day(version):
    program = node_project("@e2b/cli", version) / "node_modules" / ".bin" / "e2b"
    return [sys.executable, str(HERE / "cli.py"), str(program)]


def check(server, name, prepare, expected, before):
    with tempfile.TemporaryDirectory() as place:
        command = [server.isopod, "--state-dir", str(server.state), "env", "--docker", "--", *prepare(Path(place))]
        # A key of E2B's cloud, as such an application has it. The server does not know it.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("E2B_") and not k.lower().endswith("_proxy")}
        environment["E2B_API_KEY"] = "e2b_" + "0" * 40
        # Where the CLI looks for a login of the user who runs the tests.
        environment["HOME"] = place
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            during = machine()
            output, errors = running.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            running.kill()
            return [f"{name} did not end: {running.communicate()}"]
    problems = []
    if running.returncode != 0 or output.splitlines() != expected:
        problems.append(f"{name} ended with {running.returncode}: {output}{errors}")
    if during != before or machine() != before:
        problems.append(f"{name} changed the machine: {before} {during} {machine()}")
    print(f"{'FAILED' if problems else 'ok'} {name}", flush=True)
    return problems


def machine():
    """What no application may change for others."""
    seen = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in UNCHANGED if Path(path).exists()}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return seen | {"mounts": [line for line in mounts if " /etc" in line or "isopod-env" in line or "nscd" in line]}


if __name__ == "__main__":
    main()
