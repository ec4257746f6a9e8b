"""By hand: the official Python SDK (`pip install e2b`) against a guest of this machine.

    python sdk_smoke.py target/debug/isopod-guest [user]

Starts the guest on a Unix socket, forwards localhost:49983 to it (where the SDK looks with E2B_DEBUG=true) and uses
commands, files, terminals and watches as an agent would. Needs root, and port 49983 to be free.
"""

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

os.environ["E2B_DEBUG"] = "true"
os.environ["E2B_API_KEY"] = "e2b_" + "0" * 40

from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, NotFoundException, PtySize, Sandbox
from e2b.exceptions import InvalidArgumentException, TimeoutException


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
            try:
                end.shutdown(how)
            except OSError:
                pass


def forward(path):
    server = socket.create_server(("127.0.0.1", 49983))
    while True:
        client, _ = server.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        guest = socket.socket(socket.AF_UNIX)
        guest.connect(path)
        threading.Thread(target=pump, args=(client, guest), daemon=True).start()
        threading.Thread(target=pump, args=(guest, client), daemon=True).start()


def init(path, user):
    guest = socket.socket(socket.AF_UNIX)
    guest.connect(path)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = guest
    body = json.dumps({"envVars": {"SANDBOX_VAR": "yes"}, "defaultUser": user})
    connection.request("POST", "/init", body, {"X-Isopod-Control": "1", "Content-Type": "application/json"})
    assert connection.getresponse().status == 204


def commands(sandbox):
    assert sandbox.is_running()
    result = sandbox.commands.run("echo out; echo err >&2; echo $SANDBOX_VAR $MINE", envs={"MINE": "1"})
    assert (result.stdout, result.stderr, result.exit_code) == ("out\nyes 1\n", "err\n", 0), result
    try:
        sandbox.commands.run("exit 3")
        raise AssertionError("exit 3 did not raise")
    except CommandExitException as error:
        assert error.exit_code == 3
    try:
        sandbox.commands.run("true", cwd="/no/such")
        raise AssertionError("bad cwd did not raise")
    except (InvalidArgumentException, Exception) as error:
        assert "cwd '/no/such' does not exist" in str(error), error
    try:
        sandbox.commands.run("sleep 30", timeout=1)
        raise AssertionError("timeout did not raise")
    except TimeoutException:
        pass
    background = sandbox.commands.run("sleep 30", background=True)
    assert background.pid in [p.pid for p in sandbox.commands.list()]
    assert sandbox.commands.kill(background.pid) is True
    assert sandbox.commands.kill(background.pid) is False or time.sleep(0.2) is None
    cat = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(cat.pid, "hello\n")
    sandbox.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "hello\n"
    big = sandbox.commands.run("head -c 20000000 /dev/zero | tr '\\0' x")
    assert len(big.stdout) == 20_000_000
    handle = sandbox.commands.run("sleep 0.3; echo late; exit 4", background=True)
    handle.disconnect()
    time.sleep(1)
    late = sandbox.commands.connect(handle.pid)
    try:
        late.wait()
        raise AssertionError("exit 4 did not raise")
    except CommandExitException as error:
        assert (error.stdout, error.exit_code) == ("late\n", 4), error


def files(sandbox, base):
    path = f"{base}/dir/a ü+b.txt"
    info = sandbox.files.write(path, "text", metadata={"kind": "note"})
    assert info.path == path, info
    assert sandbox.files.read(path) == "text"
    assert sandbox.files.read(path, gzip=True) == "text"
    assert sandbox.files.get_info(path).metadata == {"kind": "note"}
    assert sandbox.files.exists(path) and not sandbox.files.exists(path + "x")
    many = sandbox.files.write_files([{"path": f"{base}/m{n}", "data": bytes([n]) * n} for n in range(5)])
    assert len(many) == 5
    assert sandbox.files.read(f"{base}/m4", format="bytes") == b"\4\4\4\4"
    sandbox.files.write(f"{base}/gz", b"z" * 100_000, gzip=True)
    assert bytes(sandbox.files.read(f"{base}/gz", format="bytes")) == b"z" * 100_000
    blob = os.urandom(8 << 20)
    with tempfile.TemporaryFile() as file:
        file.write(blob)
        file.seek(0)
        sandbox.files.write(f"{base}/blob", file)
    assert b"".join(sandbox.files.read(f"{base}/blob", format="stream")) == blob
    assert sandbox.files.make_dir(f"{base}/new/deep") is True
    assert sandbox.files.make_dir(f"{base}/new/deep") is False
    names = [entry.name for entry in sandbox.files.list(base, depth=2)]
    assert "deep" in names and "blob" in names, names
    moved = sandbox.files.rename(f"{base}/m1", f"{base}/else/where")
    assert moved.path == f"{base}/else/where"
    sandbox.files.remove(f"{base}/dir")
    assert not sandbox.files.exists(path)
    for missing in (lambda: sandbox.files.read("/no/such"), lambda: sandbox.files.list("/no/such")):
        try:
            missing()
            raise AssertionError("a missing path did not raise")
        except NotFoundException:
            pass


def watch(sandbox, base):
    watched = f"{base}/watched"
    sandbox.files.make_dir(watched)
    handle = sandbox.files.watch_dir(watched, recursive=True, include_entry=True)
    sandbox.files.write(f"{watched}/sub/file", "x")
    deadline, seen = time.time() + 5, []
    while time.time() < deadline and not any(e.name == "sub/file" and e.entry for e in seen):
        seen += handle.get_new_events()
    assert any(e.name == "sub/file" and e.type == FilesystemEventType.CREATE for e in seen), seen
    handle.stop()


def terminal(sandbox):
    seen = []
    pty = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=20)
    sandbox.pty.resize(pty.pid, PtySize(rows=50, cols=100))
    sandbox.pty.send_stdin(pty.pid, b"stty size; tty; exit\n")
    pty.wait(on_pty=lambda data: seen.append(data))
    text = b"".join(seen).decode()
    assert "50 100" in text and "/dev/pts/" in text, text


async def with_async(base):
    sandbox = await AsyncSandbox.create()
    events = []
    await sandbox.files.make_dir(f"{base}/awatched")
    handle = await sandbox.files.watch_dir(f"{base}/awatched", on_event=events.append)
    await sandbox.files.write(f"{base}/awatched/x", "1")
    for _ in range(50):
        if events:
            break
        await asyncio.sleep(0.1)
    assert events and events[0].name == "x", events
    await handle.stop()
    results = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(30)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(30)]


def latency(sandbox):
    times = []
    for _ in range(50):
        start = time.perf_counter()
        sandbox.commands.run("echo hi")
        times.append((time.perf_counter() - start) * 1000)
    times.sort()
    print(f"commands.run('echo hi'): p50 {times[25]:.1f} ms, best {times[0]:.1f} ms")


def main():
    binary, user = sys.argv[1], (sys.argv[2:] or ["root"])[0]
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o777)
        path = f"{base}/guest.sock"
        guest = subprocess.Popen([binary, "init", "--listen-path", path])
        try:
            while not os.path.exists(path):
                time.sleep(0.01)
            init(path, user)
            threading.Thread(target=forward, args=(path,), daemon=True).start()
            sandbox = Sandbox.create()
            for step in (commands, terminal, files, watch, latency):
                step(sandbox, base) if step in (files, watch) else step(sandbox)
                print(step.__name__, "ok")
            asyncio.run(with_async(base))
            print("async ok")
        finally:
            guest.kill()
            guest.wait()


main()
