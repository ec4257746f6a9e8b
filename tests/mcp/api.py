"""The sandboxes that the server has, past MCP."""

import json
import os
import time
import urllib.request

DEADLINE = 30
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def request(path, method="GET", variables=os.environ):
    headers = {"X-API-Key": variables["E2B_API_KEY"]}
    with OPENER.open(urllib.request.Request(variables["E2B_API_URL"] + path, headers=headers, method=method), timeout=30) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def sandboxes(variables=os.environ):
    return {one["sandboxID"] for one in request("/v2/sandboxes", variables=variables)}


def kill(sandbox, variables=os.environ):
    request(f"/sandboxes/{sandbox}", "DELETE", variables)


def until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"it did not come true: {what}"
        time.sleep(0.1)


def until_gone(sandbox, variables=os.environ):
    until(lambda: sandbox not in sandboxes(variables), f"{sandbox} is gone")
