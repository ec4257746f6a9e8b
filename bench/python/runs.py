"""Measures the tool calls of a run through REST, and beside them the way without sessions: a new sandbox for each call, with
all files sent each time. Prints JSON with milliseconds."""

import http.client
import json
import os
import sys
import time
import urllib.parse

from e2b_code_interpreter import Sandbox

ORDERS = json.loads(sys.argv[1])
RESULTS = {}
FILES = ORDERS["files"]
CONNECTION = http.client.HTTPConnection(urllib.parse.urlparse(os.environ["E2B_API_URL"]).netloc, timeout=300)
HEADERS = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}


def call(method, path, body=b""):
    CONNECTION.request(method, path, body=body, headers=HEADERS)
    answer = CONNECTION.getresponse()
    text = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
    return json.loads(text) if text else None


def execute(run, code="1+1"):
    result = call("POST", f"/runtime/{run}/execute", json.dumps({"code": code}))
    assert result["success"] and (code != "1+1" or result["output"]["results"][0]["text"] == "2"), result
    return result


def clock(work):
    began = time.perf_counter()
    value = work()
    return (time.perf_counter() - began) * 1e3, value


def wait_until_ready():
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        try:
            Sandbox.create(timeout=60).kill()
            return time.sleep(2)
        except Exception as problem:
            if "being built" not in str(problem):
                raise
        time.sleep(0.5)
    sys.exit("the template does not get ready")


def calls_of_a_run():
    firsts = []
    for n in range(max(5, ORDERS["calls"] // 20)):
        time.sleep(0.15)
        firsts.append(clock(lambda: execute(f"first-{n}"))[0])
        call("DELETE", f"/runtime/first-{n}/cleanup")
    RESULTS["first call of a run, ms"] = firsts
    execute("warm")
    RESULTS["second and later calls, 1+1, ms"] = [clock(lambda: execute("warm"))[0] for _ in range(ORDERS["calls"])]
    call("DELETE", "/runtime/warm/cleanup")


def syncs():
    for n in range(FILES):
        call("PUT", f"/runtime/sync/files/d{n % 10}/f{n}.csv", f"{n},".encode() * 200)
    sent = execute("sync")["sync"]
    assert sent["uploaded"] == FILES, sent
    RESULTS["all files new, sync, ms"] = [sent["millis"]]
    # Files that were written a moment ago are looked at twice.
    time.sleep(0.3)
    execute("sync")
    whole, unchanged = [], []
    for _ in range(ORDERS["calls"] // 4):
        took, result = clock(lambda: execute("sync"))
        assert result["sync"]["uploaded"] == 0 and result["sync"]["unchanged"] == FILES, result["sync"]
        whole.append(took)
        unchanged.append(result["sync"]["millis"])
    RESULTS["files unchanged, whole call, ms"] = whole
    RESULTS["files unchanged, sync, ms"] = unchanged
    whole, changed = [], []
    for n in range(ORDERS["calls"] // 4):
        call("PUT", "/runtime/sync/files/d0/f0.csv", f"{n},{time.time()}".encode())
        took, result = clock(lambda: execute("sync"))
        assert result["sync"]["uploaded"] == 1, result["sync"]
        whole.append(took)
        changed.append(result["sync"]["millis"])
    RESULTS["one file changed, whole call, ms"] = whole
    RESULTS["one file changed, sync, ms"] = changed
    call("DELETE", "/runtime/sync/cleanup")


def without_sessions():
    """A new sandbox for each call."""

    def one(count):
        sandbox = Sandbox.create(timeout=60)
        try:
            for n in range(count):
                sandbox.files.write(f"d{n % 10}/f{n}.csv", f"{n}," * 200)
            assert sandbox.run_code("1+1").text == "2"
        finally:
            sandbox.kill()

    times = []
    for _ in range(max(5, ORDERS["calls"] // 10)):
        time.sleep(0.15)
        times.append(clock(lambda: one(0))[0])
    RESULTS["peer: new sandbox for each call, 1+1, ms"] = times
    RESULTS["peer: new sandbox, all files sent, ms"] = [clock(lambda: one(FILES))[0] for _ in range(2)]


wait_until_ready()
calls_of_a_run()
syncs()
without_sessions()
print(json.dumps(RESULTS))
