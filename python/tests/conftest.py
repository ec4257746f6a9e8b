"""One server and one Redis for all tests, started here and removed afterwards with everything that belongs to them.

ISOPOD_PROGRAM names the program (run.py sets it). Needs root and redis-server.
"""

import contextlib
import inspect
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "sdk"), str(Path(__file__).parent)]

# pytester forgets modules that were imported while it ran, and this one can't be imported twice.
import e2b_code_interpreter  # noqa: E402, F401
from harness.server import Server  # noqa: E402

TEMPLATE = "code-interpreter-v1"
pytest_plugins = ["isopod.pytest_plugin", "pytester"]


def pytest_configure(config):
    # For the programs that tests start.
    os.environ["PYTHONPATH"] = str(ROOT / "python")
    # Plugins of the user, or a server in the environment, must not change what is tested.
    for name in [name for name in os.environ if name.startswith("E2B_")]:
        del os.environ[name]


@pytest.fixture(scope="session")
def redis_url():
    if shutil.which("redis-server") is None:
        pytest.fail("redis-server is needed: apt-get install redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory() as place:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", place]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for_port(port)
        yield f"redis://127.0.0.1:{port}"
        process.terminate()
        process.wait()


@pytest.fixture(scope="session", autouse=True)
def server(redis_url):
    """`isopod serve`, with the variables that it prints in this process's environment."""
    with running(Server(program(), prepare=TEMPLATE, variables={"REDIS_URL": redis_url})) as server:
        os.environ.update(sdk_variables(server))
        yield server


@contextlib.contextmanager
def running(server):
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        yield server
    finally:
        problems = server.stop()
    assert not problems, "\n".join(problems)


def sdk_variables(server):
    """By which SDKs find a server."""
    return {name: value for name, value in server.environment().items() if name.startswith("E2B_")}


def program():
    """The program to test."""
    return Path(os.environ.get("ISOPOD_PROGRAM") or ROOT / "target" / "debug" / "isopod").resolve()


@pytest.fixture
def unique():
    """An id that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def alive():
    """Whether a sandbox is still there, as E2B's SDK sees it."""
    from e2b import Sandbox

    def look(sandbox_id):
        listed = []
        pages = Sandbox.list()
        while pages.has_next:
            listed += [one.sandbox_id for one in pages.next_items()]
        return sandbox_id in listed

    return look


async def done_by(call):
    """The result of a call, whether it has to be awaited or not."""
    return await call if inspect.isawaitable(call) else call


def wait_until(holds):
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    pytest.fail("waited 30 seconds for something that did not happen")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for_port(port):
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    pytest.fail(f"nothing listens on port {port}")


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped, and the line that `cargo xtask test` counts by."""
    stats = terminalreporter.stats
    skipped = stats.get("skipped", [])
    for reason, count in Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    terminalreporter.write_line(f"{len(stats.get('passed', []))} passed, {failed} failed, {len(skipped)} skipped")
