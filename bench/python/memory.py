"""Measures saved memory through the official SDK: snapshots, forks, and pauses that are on disk. Prints JSON with milliseconds."""

import glob
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2b_code_interpreter import Sandbox

ORDERS = json.loads(sys.argv[1])
RESULTS = {}
HOLDER = (Path(__file__).parent / "holder.py").read_text()


def clock(work):
    began = time.perf_counter()
    value = work()
    return (time.perf_counter() - began) * 1e3, value


def holder(megabytes):
    sandbox = Sandbox.create("base", timeout=3000)
    sandbox.files.write("/tmp/holder.py", HOLDER)
    sandbox.commands.run(f"python3 /tmp/holder.py {megabytes}", background=True, timeout=0)
    while not sandbox.files.exists("/tmp/longest"):
        time.sleep(0.05)
    return sandbox


def wait_until_saved(sandboxes):
    """Only the server's own records tell."""
    wanted, deadline = {sandbox.sandbox_id for sandbox in sandboxes}, time.monotonic() + 600
    while wanted and time.monotonic() < deadline:
        for path in glob.glob(f"{ORDERS['state']}/homes/serve/boxes/*/record.json"):
            try:
                record = json.load(open(path))
            except (OSError, ValueError):
                continue
            if record["state"] == "saved":
                wanted.discard((record.get("spec") or {}).get("sandbox"))
        time.sleep(0.05)
    assert not wanted, f"{len(wanted)} were not saved"


def dumped():
    """How long the programs of the newest snapshot stood still for CRIU, by its own statistics."""
    images = glob.glob(f"{ORDERS['state']}/homes/serve/boxes/*/memory/images/stats-dump")
    message = Path(max(images, key=os.path.getmtime)).read_bytes()[12:]
    # A message in a message, and its second field: the microseconds from the first stop to the last release.
    return fields(fields(message)[1])[2] / 1e3


def fields(message):
    """Those of a protobuf message, by number."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        found[key >> 3] = value
    return found


def fresh():
    times = []
    for _ in range(ORDERS["calls"]):
        time.sleep(0.1)
        took, sandbox = clock(lambda: Sandbox.create("base", timeout=60))
        times.append(took)
        sandbox.kill()
    RESULTS["create from a template"] = times


def snapshots():
    taken, stopped, created, dumps = [], [], [], []
    sandbox = holder(32)
    for _ in range(ORDERS["calls"]):
        sandbox.files.write("/tmp/reset", "")
        while sandbox.files.exists("/tmp/reset"):
            time.sleep(0.005)
        took, snapshot = clock(sandbox.create_snapshot)
        taken.append(took)
        dumps.append(dumped())
        stopped.append(float(sandbox.files.read("/tmp/longest")))
        took, copy = clock(lambda: Sandbox.create(snapshot.snapshot_id, timeout=60))
        created.append(took)
        copy.kill()
        Sandbox.delete_snapshot(snapshot.snapshot_id)
    sandbox.kill()
    RESULTS["snapshot, 32 MB"] = taken
    RESULTS["the source stands still, 32 MB"] = stopped
    RESULTS["of which for CRIU, 32 MB"] = dumps
    RESULTS["create from a snapshot, 32 MB"] = created


def resumes(megabytes, calls):
    times = []
    sandbox = holder(megabytes)
    for _ in range(calls):
        sandbox.pause()
        wait_until_saved([sandbox])
        if ORDERS["packed"]:
            wait_until_packed()
        times.append(clock(lambda: sandbox.connect(timeout=3000))[0])
    sandbox.kill()
    kind = "compressed memory" if ORDERS["packed"] else "disk"
    RESULTS[f"resume from {kind}, {megabytes} MB"] = times


def wait_until_packed():
    pages = f"{ORDERS['state']}/homes/serve/boxes/*/memory/images/pages-*.img"
    deadline = time.monotonic() + 600
    while glob.glob(pages):
        assert time.monotonic() < deadline, "its memory was not compressed"
        time.sleep(0.05)


def first_cell(copy):
    return copy.run_code("int(numbers.sum())").text


def forks(count, calls):
    """Until each copy has run its first cell."""
    times = []
    with Sandbox.create(timeout=3000) as sandbox:
        sandbox.run_code("import numpy; numbers = numpy.arange(1000)")
        for _ in range(calls):
            began = time.perf_counter()
            copies = sandbox.fork(count=count, timeout=300)
            with ThreadPoolExecutor(count) as pool:
                assert set(pool.map(first_cell, copies)) == {"499500"}
            times.append((time.perf_counter() - began) * 1e3)
            for copy in copies:
                copy.kill()
    RESULTS[f"numpy kernel: fork({count}) → first run_code in each"] = times


def available():
    """Megabytes that programs could get, the page cache included."""
    line = next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024


def settled():
    """What is available once nothing of the sandboxes before comes back any more."""
    while True:
        before = available()
        time.sleep(5)
        if abs(available() - before) < 5:
            return available()


def paused(count):
    before = settled()
    sandboxes = [holder(32) for _ in range(count)]
    running = before - settled()
    for sandbox in sandboxes:
        sandbox.pause()
    wait_until_saved(sandboxes)
    RESULTS["running"] = running / count
    RESULTS["paused"] = (before - settled()) / count
    for sandbox in sandboxes:
        sandbox.kill()


if ORDERS["packed"]:
    resumes(32, max(3, ORDERS["calls"] // 5))
    resumes(300, max(3, ORDERS["calls"] // 10))
else:
    fresh()
    snapshots()
    resumes(32, ORDERS["calls"])
    resumes(300, max(3, ORDERS["calls"] // 5))
    forks(1, ORDERS["calls"])
    forks(20, max(2, ORDERS["calls"] // 10))
    paused(ORDERS["paused"])
print(json.dumps(RESULTS))
