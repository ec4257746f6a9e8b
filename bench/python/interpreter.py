"""Measures the code interpreter through the official SDK, and ipykernel beside it. Prints JSON with milliseconds."""

import asyncio
import json
import pathlib
import sys
import time
import urllib.request
import os

from e2b_code_interpreter import AsyncSandbox, Sandbox
from jupyter_client.manager import start_new_kernel

ORDERS = json.loads(sys.argv[1])
RESULTS = {}


def clock(work):
    began = time.perf_counter()
    value = work()
    return (time.perf_counter() - began) * 1e3, value


def is_warm(sandbox):
    return "zygote" in sandbox.run_code("open('/proc/self/cmdline').read()").text


def wait_until_warm():
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        try:
            with Sandbox.create(timeout=60) as sandbox:
                if is_warm(sandbox):
                    time.sleep(2)
                    return
        except Exception as problem:
            if "being built" not in str(problem):
                raise
        time.sleep(0.5)
    sys.exit("no warm interpreter comes")


def first_results():
    times = []
    for _ in range(ORDERS["calls"]):
        # Others come and go meanwhile: what is measured is a pool that has had a moment.
        time.sleep(0.15)
        began = time.perf_counter()
        sandbox = Sandbox.create(timeout=60)
        assert sandbox.run_code("1+1").text == "2"
        times.append((time.perf_counter() - began) * 1e3)
        sandbox.kill()
    RESULTS["create \u2192 first run_code, ms"] = times


def warm_calls():
    with Sandbox.create(timeout=300) as sandbox:
        for _ in range(10):
            sandbox.run_code("1+1")
        times = [clock(lambda: sandbox.run_code("1+1"))[0] for _ in range(ORDERS["calls"])]
    RESULTS["warm run_code(1+1), ms"] = times


def peer():
    began = time.perf_counter()
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute_interactive("1+1", output_hook=lambda message: None)
        RESULTS["peer: ipykernel, start \u2192 first result, ms"] = [(time.perf_counter() - began) * 1e3]
        for _ in range(10):
            client.execute_interactive("1+1", output_hook=lambda message: None)
        run = lambda: client.execute_interactive("1+1", output_hook=lambda message: None)
        RESULTS["peer: ipykernel, warm 1+1, ms"] = [clock(run)[0] for _ in range(ORDERS["calls"])]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


async def burst():
    made, failures, firsts = [], [], []

    async def one():
        try:
            began = time.perf_counter()
            sandbox = await AsyncSandbox.create(timeout=120)
            made.append(sandbox)
            result = await sandbox.run_code("import numpy; numpy.arange(10).sum()")
            assert "45" in result.text, result
            firsts.append((time.perf_counter() - began) * 1e3)
        except Exception as problem:
            failures.append(repr(problem)[:200])

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(ORDERS["burst"])))
    took = (time.perf_counter() - began) * 1e3
    await asyncio.gather(*(sandbox.kill() for sandbox in made))
    return took, failures, firsts


def bursts():
    RESULTS["burst of 50 with numpy, ms"] = []
    RESULTS["burst failures"] = 0
    RESULTS["create \u2192 first run_code, pool empty, ms"] = []
    for _ in range(3):
        time.sleep(5)
        took, failures, firsts = asyncio.run(burst())
        RESULTS["burst of 50 with numpy, ms"].append(took)
        RESULTS["burst failures"] += len(failures)
        # All but those that the pool had.
        RESULTS["create \u2192 first run_code, pool empty, ms"] += sorted(firsts)[10:]
        for failure in failures[:3]:
            print(failure, file=sys.stderr)


def private_megabytes():
    """What the processes of each interpreter inside a sandbox have for themselves, by the kernel's own count."""
    private = {}
    for status in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (status / "cmdline").read_bytes()
            namespace = os.readlink(status / "ns/pid")
            if b"run.py\0zygote" not in command or namespace == os.readlink("/proc/self/ns/pid"):
                continue
            rollup = (status / "smaps_rollup").read_text()
        except OSError:
            continue
        kilobytes = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
        private[namespace] = private.get(namespace, 0) + kilobytes * 1024 / 1e6
    return private


def median(values):
    return sorted(values)[len(values) // 2]


def memory():
    """Of all that wait in the pool, and of five after a cell."""
    time.sleep(5)
    idle = private_megabytes()
    sandboxes = [Sandbox.create(timeout=300) for _ in range(5)]
    for sandbox in sandboxes:
        assert is_warm(sandbox)
    used = {name: size for name, size in private_megabytes().items() if name in idle}
    for sandbox in sandboxes:
        sandbox.kill()
    RESULTS["private memory of an idle interpreter, MB"] = median(idle.values())
    # Those five have grown the most.
    RESULTS["private memory after its first cell, MB"] = median(sorted(used.values())[-5:])


def output():
    total = ORDERS["megabytes"] * 1000 * 1000
    line = 1000
    got = 0

    def count(message):
        nonlocal got
        got += len(message.line)

    with Sandbox.create(timeout=300) as sandbox:
        sandbox.run_code("1")
        code = f"text = 'x' * {line - 1}\nfor _ in range({total // line}): print(text)"
        took, _ = clock(lambda: sandbox.run_code(code, on_stdout=count, timeout=120))
    RESULTS["printed output, MB/s"] = total / 1e3 / took
    RESULTS["lost bytes"] = total - got


wait_until_warm()
first_results()
warm_calls()
peer()
bursts()
memory()
output()
json.dump(RESULTS, sys.stdout)
