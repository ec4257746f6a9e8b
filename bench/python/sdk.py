"""Measures a server through the official SDK. Reads its orders from the first argument, prints JSON with milliseconds."""

import asyncio
import json
import pathlib
import socket
import subprocess
import sys
import time

from e2b import AsyncSandbox, Sandbox

ORDERS = json.loads(sys.argv[1])
CALLS = ORDERS["calls"]
REAL = ORDERS["real"]
TEMPLATE = "base"


def timed(work):
    start = time.perf_counter()
    result = work()
    return (time.perf_counter() - start) * 1e3, result


def measure_creates(results):
    creates, firsts = [], []
    for _ in range(CALLS):
        taken, sandbox = timed(lambda: Sandbox.create(TEMPLATE, timeout=600))
        creates.append(taken)
        sandbox.kill()
        pause()
    for _ in range(CALLS):
        def both():
            sandbox = Sandbox.create(TEMPLATE, timeout=600)
            sandbox.commands.run("true")
            return sandbox
        taken, sandbox = timed(both)
        firsts.append(taken)
        sandbox.kill()
        pause()
    results["create"] = creates
    results["create → first command"] = firsts


def pause():
    """Lets the pool fill again; a burst is another row."""
    if REAL:
        time.sleep(0.05)


def measure_warm(results):
    sandbox = Sandbox.create(TEMPLATE, timeout=600)
    sandbox.commands.run("true")
    results["warm commands.run"] = [timed(lambda: sandbox.commands.run("true"))[0] for _ in range(CALLS)]
    sandbox.kill()


async def burst(count):
    start = time.perf_counter()
    made = await asyncio.gather(
        *(AsyncSandbox.create(TEMPLATE, timeout=600) for _ in range(count)), return_exceptions=True
    )
    taken = (time.perf_counter() - start) * 1e3
    good = [one for one in made if not isinstance(one, BaseException)]
    errors = [repr(one)[:200] for one in made if isinstance(one, BaseException)]
    await asyncio.gather(*(one.kill() for one in good), return_exceptions=True)
    return taken, errors


def measure_bursts(results):
    asyncio.run(burst(2))
    taken, failures = [], []
    for _ in range(ORDERS["bursts"]):
        time.sleep(2 if REAL else 0)
        one, errors = asyncio.run(burst(100))
        taken.append(one)
        failures += errors
    results["burst of 100 creates"] = taken
    results["burst failures"] = failures


async def make_many(count):
    made, errors = [], []
    while len(made) < count and len(errors) < 10:
        some = await asyncio.gather(
            *(AsyncSandbox.create(TEMPLATE, timeout=600) for _ in range(min(20, count - len(made)))),
            return_exceptions=True,
        )
        made += [one for one in some if not isinstance(one, BaseException)]
        errors += [repr(one)[:200] for one in some if isinstance(one, BaseException)]
    return made, errors


def list_all():
    pages = Sandbox.list(limit=100)
    found = 0
    while pages.has_next:
        found += len(pages.next_items())
    return found


def measure_list(results):
    async def story():
        made, errors = await make_many(ORDERS["crowd"]) if REAL else ([], [])
        results["list errors"] = errors
        runs = [timed(list_all) for _ in range(20)]
        results["list of all"] = [taken for taken, _ in runs]
        results["listed"] = runs[-1][1]
        results["list of one page of 100"] = [timed(lambda: Sandbox.list(limit=100).next_items())[0] for _ in range(50)]
        for at in range(0, len(made), 20):
            await asyncio.gather(*(one.kill() for one in made[at : at + 20]), return_exceptions=True)
    asyncio.run(story())


class Connection:
    """A kept-alive connection that is as thin as Python can make it."""

    def __init__(self, address, headers):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.headers = headers

    def get(self, path):
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{self.headers}\r\n".encode())
        buffer = bytearray(1 << 20)
        have = b""
        while b"\r\n\r\n" not in have:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("the server closed the connection")
            have += piece
        head, _, rest = have.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head[:200])
        left = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(rest)
        while left > 0:
            left -= self.socket.recv_into(buffer)


def measure_proxy(results):
    program = pathlib.Path(__file__).with_name("floor.py")
    direct = subprocess.Popen(["/usr/bin/python3", str(program)], stdout=subprocess.PIPE, text=True)
    sandbox = Sandbox.create(TEMPLATE, timeout=600)
    try:
        port = int(direct.stdout.readline())
        sandbox.files.write("/home/user/floor.py", program.read_bytes())
        sandbox.commands.run("python3 /home/user/floor.py 8000", background=True)
        host, _, own = ORDERS["address"].rpartition(":")
        headers = f"E2b-Sandbox-Id: {sandbox.sandbox_id}\r\nE2b-Sandbox-Port: 8000\r\n"
        wait_for((host, int(own)), headers)
        ways = {
            "direct": Connection(("127.0.0.1", port), ""),
            "proxied": Connection((host, int(own)), headers),
        }
        small = {name: [] for name in ways}
        big = {name: [] for name in ways}
        for _ in range(CALLS * 5):
            for name, way in ways.items():
                small[name].append(timed(lambda: way.get("/small"))[0])
        for _ in range(3):
            for name, way in ways.items():
                big[name].append(timed(lambda: way.get(f"/big/{ORDERS['mib']}"))[0])
        for name in ways:
            results[f"small request, {name}"] = small[name]
            results[f"large body, {name}"] = big[name]
    finally:
        sandbox.kill()
        direct.kill()
        direct.wait()


def wait_for(address, headers):
    for _ in range(100):
        try:
            return Connection(address, headers).get("/small")
        except ConnectionError:
            time.sleep(0.05)
    raise TimeoutError("the server in the sandbox did not start")


def main():
    results = {}
    # The first call of a process makes the connection and loads modules.
    Sandbox.create(TEMPLATE, timeout=600).kill()
    measure_creates(results)
    measure_warm(results)
    measure_bursts(results)
    if REAL:
        measure_proxy(results)
    measure_list(results)
    print(json.dumps(results))


main()
