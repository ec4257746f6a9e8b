"""Measures the workspace as programs see it, beside s3fs and rclone, against one S3 server in the same run.

    moto-venv/bin/python bench/python/storage.py target/release/examples/storaged [--files 1000] [--megabytes 256] \
        [--server PROGRAM] [--isopod target/release/isopod] [--quick]

With `--isopod` also from inside a sandbox. `--quick` streams 1 GB instead of 10. Needs root, boto3 and `moto_server` beside this Python; s3fs and rclone where they are installed. Prints markdown.
"""

import argparse
import http.server
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

KEY, SECRET = "bench-key", "bench-secret-12345"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def progress(text):
    print(text, file=sys.stderr, flush=True)


def timed(work):
    start = time.perf_counter()
    result = work()
    return (time.perf_counter() - start), result


def wait_for(check, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return
        time.sleep(0.02)
    raise TimeoutError("it takes too long")


class Server:
    """moto, or another program that is given its address, with an empty bucket."""

    def __init__(self, program):
        self.port = free_port()
        command = [program, f"127.0.0.1:{self.port}"]
        if program is None:
            command = [pathlib.Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", self.port)) == 0)
        self.s3 = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                               region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))
        self.s3.create_bucket(Bucket="bench")

    def empty(self):
        while True:
            found = self.s3.list_objects_v2(Bucket="bench").get("Contents", [])
            if not found:
                return
            self.s3.delete_objects(Bucket="bench", Delete={"Objects": [{"Key": o["Key"]} for o in found]})

    def stop(self):
        self.child.kill()
        self.child.wait()


class Sink(http.server.BaseHTTPRequestHandler):
    """Takes objects and parts like an S3 server, and keeps nothing: what a stream costs is then the daemon's alone."""

    protocol_version = "HTTP/1.1"

    def answer(self, body=b"", headers=()):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def do_HEAD(self):
        self.send_error(404)

    def do_DELETE(self):
        self.answer()

    def take(self):
        left = int(self.headers.get("Content-Length", 0))
        while left:
            left -= len(self.rfile.read(min(left, 1 << 20)))

    def do_PUT(self):
        self.take()
        self.answer()

    def do_POST(self):
        self.take()
        if "uploads" in self.path:
            return self.answer(b"<R><UploadId>1</UploadId></R>")
        self.answer(b"<R><ETag>&quot;0&quot;</ETag></R>")

    def log_message(self, *_):
        pass


class Isopod:
    name = "isopod"

    def __init__(self, program, server, work):
        self.program, self.server, self.work = program, server, work
        self.generation = 0

    def mount(self, path, second=None):
        self.generation += 1
        state = self.work / f"state-{self.generation}"
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                       "AWS_ENDPOINT_URL": self.server.url}
        mounts = [str(path)] + ([f"{second}=bench"] if second else [])
        self.child = subprocess.Popen([self.program, state, "s3:bench", *mounts], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True, env=environment)
        assert self.child.stdout.readline() == "ready\n"

    def settle(self, _path):
        self.child.stdin.write("settle\n")
        self.child.stdin.flush()
        assert self.child.stdout.readline() == "settled\n"

    def unmount(self, _path):
        self.child.stdin.close()
        self.child.wait()

    def peak(self):
        for line in pathlib.Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024


class S3fs:
    name = "s3fs"

    def __init__(self, server, work):
        self.server = server
        self.keys = work / "s3fs-keys"
        self.keys.write_text(f"{KEY}:{SECRET}")
        self.keys.chmod(0o600)

    def mount(self, path, second=None):
        options = f"passwd_file={self.keys},url={self.server.url},use_path_request_style,stat_cache_expire=1"
        subprocess.run(["s3fs", "bench", path, "-o", options], check=True)
        wait_for(lambda: os.path.ismount(path))

    def settle(self, _path):
        pass

    def unmount(self, path):
        subprocess.run(["umount", path], check=True)


class Rclone:
    name = "rclone"

    def __init__(self, server, work):
        self.server, self.work = server, work
        self.generation = 0

    def mount(self, path, second=None):
        self.generation += 1
        self.cache = self.work / f"rclone-{self.generation}"
        remote = (f":s3,provider=Other,env_auth=false,access_key_id={KEY},secret_access_key={SECRET},"
                  f"endpoint='{self.server.url}',force_path_style=true:bench")
        # This rclone cannot take a bundle of certificates from there.
        environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
        self.child = subprocess.Popen(
            ["rclone", "mount", remote, path, "--cache-dir", self.cache, "--vfs-cache-mode", "writes",
             "--vfs-write-back", "0s", "--dir-cache-time", "1s", "--attr-timeout", "1s", "--transfers", "16"],
            env={**environment, "RCLONE_CONFIG": "/dev/null"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.ismount(path))

    def settle(self, _path):
        def clean():
            metas = self.cache.rglob("vfsMeta/**/*")
            return not any(m.is_file() and '"Dirty":true' in m.read_text().replace(" ", "") for m in metas)
        try:
            wait_for(clean, 30)
        except TimeoutError:
            progress("rclone keeps a file dirty")

    def unmount(self, path):
        subprocess.run(["umount", path], check=True)
        self.child.wait()


def drop_caches():
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def write_big(path, megabytes):
    block = os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as f:
        for _ in range(megabytes):
            f.write(block)
        os.fsync(f.fileno())


def read_all(path):
    total = 0
    with open(path, "rb", buffering=0) as f:
        while data := f.read(1 << 20):
            total += len(data)
    return total


def create_small(directory, files):
    directory.mkdir()
    body = os.urandom(4096)
    for i in range(files):
        with open(directory / f"f{i:05d}", "wb") as f:
            f.write(body)


def measure_raw(server, work, files, megabytes):
    raw = {}
    seconds, _ = timed(lambda: create_small(work / "raw-small", files))
    raw["create"] = files / seconds
    disk = work / "raw"
    seconds, _ = timed(lambda: write_big(disk, megabytes))
    raw["write"] = megabytes / seconds
    config = TransferConfig(multipart_threshold=16 << 20, multipart_chunksize=16 << 20, max_concurrency=4)
    seconds, _ = timed(lambda: server.s3.upload_file(str(disk), "bench", "raw", Config=config))
    raw["upload"] = megabytes / seconds
    config = TransferConfig(multipart_threshold=4 << 20, multipart_chunksize=4 << 20, max_concurrency=5)
    seconds, _ = timed(lambda: server.s3.download_file("bench", "raw", str(disk), Config=config))
    raw["read"] = megabytes / seconds
    for i in range(files):
        server.s3.put_object(Bucket="bench", Key=f"small/f{i:05d}", Body=b"x")
    raw["list"] = min(timed(lambda: server.s3.list_objects_v2(Bucket="bench", Prefix="small/", Delimiter="/"))[0]
                      for _ in range(5)) * 1e3
    server.empty()
    return raw


def measure(tool, path, files, megabytes):
    figures = {}
    tool.mount(path)
    seconds, _ = timed(lambda: create_small(path / "small", files))
    figures["create"] = files / seconds
    seconds_settle, _ = timed(lambda: tool.settle(path))
    figures["create durable"] = files / (seconds + seconds_settle)

    def scan():
        return sum(entry.stat().st_size for entry in os.scandir(path / "small"))
    scan()
    figures["scan"] = min(timed(scan)[0] for _ in range(5)) * 1e3
    target = path / "small" / "f00001"
    os.stat(target)
    figures["stat"] = statistics.median(timed(lambda: os.stat(target))[0] for _ in range(2000)) * 1e6
    tool.unmount(path)
    drop_caches()
    tool.mount(path)
    figures["list"] = timed(lambda: len(os.listdir(path / "small")))[0] * 1e3
    figures["scan cold"] = timed(scan)[0] * 1e3

    seconds, _ = timed(lambda: write_big(path / "big", megabytes))
    figures["write"] = megabytes / seconds
    settle, _ = timed(lambda: tool.settle(path))
    figures["durable"] = megabytes / (seconds + settle)
    figures["rename"] = timed(lambda: os.rename(path / "big", path / "moved"))[0] * 1e3
    tool.settle(path)
    if hasattr(tool, "peak"):
        figures["peak"] = tool.peak()
    tool.unmount(path)
    drop_caches()
    tool.mount(path)
    seconds, total = timed(lambda: read_all(path / "moved"))
    assert total == megabytes << 20
    figures["read"] = megabytes / seconds
    tool.unmount(path)
    return figures


def measure_visibility(tool, path, second):
    """From the end of a write on the host to the first good read in the other mount."""
    tool.mount(path, second)
    waits = []
    for i in range(200):
        name = f"v{i}"
        (path / "executions/bench" / name).write_bytes(b"seen")
        start = time.perf_counter()
        while True:
            try:
                if (second / name).read_bytes() == b"seen":
                    break
            except FileNotFoundError:
                pass
        waits.append(time.perf_counter() - start)
    tool.unmount(path)
    return statistics.median(waits) * 1e3


def measure_stream(program, work, path, megabytes):
    """Peak memory of the daemon while a long file is written and goes up."""
    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    address = types.SimpleNamespace(url=f"http://127.0.0.1:{sink.server_port}")
    tool = Isopod(program, address, work / "stream")
    tool.mount(path)
    block = os.urandom(1 << 20)
    with open(path / "long", "wb", buffering=0) as f:
        for _ in range(megabytes):
            f.write(block)
    tool.settle(path)
    peak = tool.peak()
    tool.unmount(path)
    shutil.rmtree(work / "stream", ignore_errors=True)
    sink.shutdown()
    return peak


# What runs in the sandbox: the same work as on the host, and the first moment at which each file of the host can be read.
INSIDE = """
import json, os, sys, time
place, files, megabytes, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
def create():
    os.mkdir(place + "/small")
    body = os.urandom(4096)
    for i in range(files):
        with open(f"{place}/small/f{i:05d}", "wb") as f:
            f.write(body)
def big():
    block = os.urandom(1 << 20)
    with open(place + "/big", "wb", buffering=0) as f:
        for _ in range(megabytes):
            f.write(block)
        os.fsync(f.fileno())
def scan():
    sum(entry.stat().st_size for entry in os.scandir(place + "/small"))
figures = {"create": files / timed(create), "write": megabytes / timed(big)}
scan()
figures["scan"] = min(timed(scan) for _ in range(5)) * 1e3
seen = []
open(place + "/ready", "w").close()
for i in range(rounds):
    while True:
        try:
            with open(f"{place}/v{i}", "rb") as f:
                if f.read() == b"seen":
                    break
        except FileNotFoundError:
            pass
    seen.append(time.time_ns())
    with open(f"{place}/a{i}", "wb") as f:
        f.write(b"ack")
print(json.dumps({**figures, "seen": seen}))
"""


def measure_inside(isopod, work, files, megabytes):
    """The same from inside a sandbox, over a directory; and how soon it sees what the host has written."""
    base, rounds = work / "base", 200
    place = base / "executions/bench"
    storage = ["--storage", f"dir:{work / 'inside-bucket'}", "--storage-base-path", str(base)]
    common = [isopod, "--state-dir", str(work / "isopod-state")]
    server = subprocess.Popen([*common, "serve", "--listen", "127.0.0.1:0", "--prepare", "none", *storage],
                              stdout=subprocess.PIPE, text=True)
    variables = dict(os.environ, ISOPOD_STORAGE=storage[1], STORAGE_BASE_PATH=str(base))
    for line in server.stdout:
        if line.strip().startswith("export "):
            name, _, value = line.strip().removeprefix("export ").partition("=")
            variables[name] = value
        if "E2B_VOLUME_API_URL" in line:
            break

    def run(*arguments):
        return subprocess.run([*common, *arguments], env=variables, check=True, capture_output=True, text=True).stdout

    try:
        run("storage", "mount")
        sandbox = run("create", "--detach", "--metadata", "execution_id=bench").strip()
        order = ["exec", sandbox, "--", "python3", "-c", INSIDE, str(place), str(files), str(megabytes), str(rounds)]
        inside = subprocess.Popen([*common, *order], env=variables, stdout=subprocess.PIPE, text=True)
        wait_for((place / "ready").exists, 300)
        written = []
        for i in range(rounds):
            (place / f"v{i}").write_bytes(b"seen")
            written.append(time.time_ns())
            wait_for((place / f"a{i}").exists)
        figures = json.loads(inside.communicate()[0])
        # Some are seen before the host's close has returned: that is at once.
        waits = [max(0, seen - done) / 1e6 for seen, done in zip(figures.pop("seen"), written)]
        run("kill", sandbox)
        run("storage", "stop", "--force")
        return {**figures, "visible": statistics.median(waits)}
    finally:
        server.terminate()
        server.wait()


ROWS = [
    ("create 4 KB files", "create", "{:.0f}/s", "≥ 3,000/s, ≥ 10× s3fs"),
    ("the same, until in S3", "create durable", "{:.0f}/s", ""),
    ("list, cold", "list", "{:.1f} ms", "≤ 1.2× raw + 10 ms"),
    ("scandir + stat", "scan", "{:.1f} ms", "≤ 40 ms"),
    ("scandir + stat, cold", "scan cold", "{:.1f} ms", ""),
    ("stat, warm", "stat", "{:.1f} µs", "≤ 20 µs"),
    ("write + fsync", "write", "{:.0f} MB/s", "≥ 0.7× raw"),
    ("the same, until in S3", "durable", "{:.0f} MB/s", "≥ 0.8× raw upload"),
    ("read, cold", "read", "{:.0f} MB/s", "≥ 0.8× raw"),
    ("rename of the big file", "rename", "{:.2f} ms", "≤ 10 ms"),
    ("peak memory of the daemon", "peak", "{:.0f} MB", "≤ 200 MB"),
    ("the same, streaming a long file", "stream", "{:.0f} MB", "≤ 200 MB"),
    ("host → other mount", "visible", "{:.2f} ms", "≤ 5 ms (the sandbox's column: host → sandbox)"),
]


def report(raw, results, files, megabytes):
    raw = {**raw, "durable": raw["upload"]}
    print(f"{files} small files, one of {megabytes} MB; load at the end {os.getloadavg()[0]:.1f}\n")
    print("| what | raw | " + " | ".join(results) + " | bar |")
    print("|---|" + "---|" * (len(results) + 2))
    for label, key, form, bar in ROWS:
        cells = [form.format(raw[key]) if key in raw else ""]
        cells += [form.format(figures[key]) if key in figures else "" for figures in results.values()]
        print(f"| {label} | " + " | ".join(cells) + f" | {bar} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("daemon", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--server", help="an S3 server without checks of keys, started as SERVER ADDRESS")
    parser.add_argument("--isopod", type=pathlib.Path, help="measure inside a sandbox of this program too")
    parser.add_argument("--quick", action="store_true", help="stream 1 GB instead of 10")
    arguments = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="storage-bench-", dir="/var/tmp"))
    path, second = work / "mount", work / "second"
    path.mkdir()
    second.mkdir()
    server = Server(arguments.server)
    try:
        raw = measure_raw(server, work, arguments.files, arguments.megabytes)
        tools = [Isopod(arguments.daemon, server, work)]
        tools += [S3fs(server, work)] if shutil.which("s3fs") else []
        tools += [Rclone(server, work)] if shutil.which("rclone") else []
        results = {}
        for tool in tools:
            progress(tool.name)
            try:
                results[tool.name] = measure(tool, path, arguments.files, arguments.megabytes)
            except (OSError, subprocess.SubprocessError) as error:
                if tool.name == "isopod":
                    raise
                progress(f"{tool.name} does not work here: {error!r}")
                subprocess.run(["umount", "-l", path], check=False)
            server.empty()
        results["isopod"]["visible"] = measure_visibility(tools[0], path, second)
        progress("a long stream")
        (work / "stream").mkdir()
        stream = 1024 if arguments.quick else 10240
        results["isopod"]["stream"] = measure_stream(arguments.daemon, work, path, stream)
        if arguments.isopod:
            progress("inside a sandbox")
            results["isopod, inside a sandbox"] = measure_inside(
                arguments.isopod, work, arguments.files, arguments.megabytes)
        report(raw, results, arguments.files, arguments.megabytes)
    finally:
        for mount in (path, second):
            if os.path.ismount(mount):
                subprocess.run(["umount", "-l", mount], check=False)
        server.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
