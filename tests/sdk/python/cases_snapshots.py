"""Snapshots and forks: what E2B's own tests expect, and that processes go on."""

import asyncio
import contextlib
import inspect
import json
import os

import e2b
from cases_volumes import Made
from harness.cases import Absent, case
from kit import URL, exception, fetch, go, has, pages, raises, takes, unique, until
from limited import LIMIT, one_copy_fewer

BOOT_ID = "/proc/sys/kernel/random/boot_id"
COUNTER = "i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.05; done"
# Only in memory: no file has the number.
KEEPER = """import http.server, os
number = os.urandom(8).hex()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(number.encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Answer).serve_forever()
"""


# The second row and the end of the transaction come when somebody asks for them.
TRANSACTION = """import os, sqlite3, time
database = sqlite3.connect("/home/user/t.db", isolation_level=None)
database.execute("create table numbers (number)")
database.execute("begin immediate")
database.execute("insert into numbers values (1)")
open("/tmp/begun", "w").close()
while not os.path.exists("/tmp/commit"):
    time.sleep(0.05)
database.execute("insert into numbers values (2)")
database.execute("commit")
open("/tmp/committed", "w").close()
"""
# A connection out of the sandbox, and what comes of it.
CALLER = """import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
open("/tmp/connected", "w").close()
try:
    print("read", connection.recv(100), flush=True)
except OSError as error:
    print("failed", error.errno, flush=True)
"""
NODE = "let asked = 0; require('http').createServer((_, reply) => reply.end(String(++asked))).listen(3000)"


async def snapshot(sandbox, **options):
    make = has(sandbox, "create_snapshot")
    for name in options:
        takes(make, name)
    return await go(make(**options))


@contextlib.asynccontextmanager
async def kept(sdk, sandbox, **options):
    """A snapshot for the duration of a block."""
    taken = await snapshot(sandbox, **options)
    assert taken.snapshot_id
    try:
        yield taken
    finally:
        await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id))


@contextlib.asynccontextmanager
async def forked(sdk, sandbox, **options):
    """Copies for the duration of a block."""
    copies = await go(has(sandbox, "fork")(**options))
    try:
        yield copies
    finally:
        for copy in copies:
            if not isinstance(copy, Exception):
                await go(sdk.Sandbox.kill(copy.sandbox_id))


async def number(sandbox):
    """What the server in the sandbox keeps in its memory, through the edge."""
    command = "python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000').read().decode())\""
    return (await go(sandbox.commands.run(command))).stdout.strip()


async def serve(sandbox):
    await go(sandbox.files.write("/tmp/keeper.py", KEEPER))
    handle = await go(sandbox.commands.run("python3 /tmp/keeper.py", background=True, timeout=0))

    async def answers():
        with contextlib.suppress(e2b.CommandExitException):
            return await number(sandbox)

    return handle, await until(answers)


async def call_outside(sandbox, output=""):
    """Starts a program that is connected to the outside. `output` may send what it says to a file."""
    await go(sandbox.files.write("/tmp/caller.py", CALLER))
    host, port = os.environ["SDK_OUTSIDE"].split(",")[0], os.environ["SDK_OUTSIDE_PORT"]
    handle = await go(sandbox.commands.run(f"python3 /tmp/caller.py {host} {port} {output}", background=True, timeout=0))
    await until(lambda: go(sandbox.files.exists("/tmp/connected")))
    return handle


async def ids(sdk, **options):
    found = await pages(has(sdk.Sandbox, "list_snapshots")(**options))
    return [one.snapshot_id for page in found for one in page]


def lists_by_name(sdk):
    """Whether this version has the filter. The signature of the public method is that of an instance's."""
    method = getattr(sdk.Sandbox, "_cls_list_snapshots", sdk.Sandbox.list_snapshots)
    return "name" in inspect.signature(method).parameters


@case("snapshots", core=True)
async def a_snapshot_is_made_and_deleted_once(sdk):
    async with sdk.sandbox() as sandbox:
        taken = await snapshot(sandbox)
        assert taken.snapshot_id
        assert await go(sandbox.is_running())
        assert await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id)) is True
        assert await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id)) is False


@case("snapshots", core=True)
async def sandboxes_from_a_snapshot_have_its_files_and_not_each_others(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/home/user/a/b/f.txt", "original"))
        await go(sandbox.commands.run("echo root > /opt/of-root", user="root"))
        async with (
            kept(sdk, sandbox) as taken,
            sdk.sandbox(taken.snapshot_id) as one,
            sdk.sandbox(taken.snapshot_id) as two,
        ):
            assert len({sandbox.sandbox_id, one.sandbox_id, two.sandbox_id}) == 3
            await go(one.files.write("/home/user/a/b/f.txt", "changed"))
            assert await go(two.files.read("/home/user/a/b/f.txt")) == "original"
            assert await go(sandbox.files.read("/home/user/a/b/f.txt")) == "original"
            assert await go(two.files.read("/opt/of-root")) == "root\n"
            host = (await go(two.commands.run("echo $E2B_SANDBOX_ID"))).stdout.strip()
            assert host == two.sandbox_id


@case("snapshots", core=True)
async def processes_and_memory_go_on_in_a_sandbox_from_a_snapshot(sdk):
    async with sdk.sandbox(envs={"FROM": "source"}) as sandbox:
        handle, kept_number = await serve(sandbox)
        async with kept(sdk, sandbox) as taken:
            assert await number(sandbox) == kept_number
            async with sdk.sandbox(taken.snapshot_id, envs={"FROM": "copy"}) as copy:
                assert await number(copy) == kept_number
                assert handle.pid in [process.pid for process in await go(copy.commands.list())]
                again = await go(copy.commands.connect(handle.pid))
                assert again.pid == handle.pid
                assert (await go(copy.commands.run("echo $FROM"))).stdout == "copy\n"


async def clock_and_memory(sandbox, pid):
    """In seconds, how old a process and the sandbox are; and the memory limit in bytes, as programs ask for it."""
    limit = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
    told = await go(sandbox.commands.run(f"ps -o etimes= -p {pid}; cut -d. -f1 /proc/uptime; {limit}"))
    return [int(word) for word in told.stdout.split()]


@case("snapshots", core=True)
async def clocks_go_on_and_the_memory_limit_is_seen_in_a_sandbox_from_a_snapshot(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("sleep 1000", background=True, timeout=0))
        await asyncio.sleep(3)
        process, uptime, limit = await clock_and_memory(sandbox, handle.pid)
        assert 2 <= process <= uptime
        async with kept(sdk, sandbox) as taken, sdk.sandbox(taken.snapshot_id) as copy:
            process_now, uptime_now, limit_now = await clock_and_memory(copy, handle.pid)
            # For the kernel, a restored process is a new one.
            assert 0 <= process_now <= uptime_now and uptime <= uptime_now < uptime + 300, (process_now, uptime, uptime_now)
            assert limit_now == limit == (await go(copy.get_info())).memory_mb << 20


@case("snapshots")
async def a_snapshot_outlives_its_source_and_copies_outlive_it(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("f", "x"))
        taken = await snapshot(sandbox)
    copies = await sdk.together([lambda: sdk.Sandbox.create(taken.snapshot_id, timeout=60) for _ in range(3)])
    try:
        assert await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id)) is True
        assert [await go(copy.files.read("f")) for copy in copies] == ["x"] * 3
        async with raises(e2b.SandboxException, exception("NotFoundException")):
            await go(sdk.Sandbox.create(taken.snapshot_id))
    finally:
        for copy in copies:
            await go(copy.kill())


@case("snapshots")
async def snapshots_are_listed_for_all_and_for_one_sandbox(sdk):
    async with (
        sdk.sandbox() as sandbox,
        sdk.sandbox() as other,
        kept(sdk, sandbox) as taken,
        kept(sdk, other) as second,
    ):
        paginator = sdk.Sandbox.list_snapshots()
        assert paginator.has_next
        everything = await ids(sdk)
        assert {taken.snapshot_id, second.snapshot_id} <= set(everything)
        assert await ids(sdk, sandbox_id=sandbox.sandbox_id) == [taken.snapshot_id]
        mine = await pages(sandbox.list_snapshots())
        assert [one.snapshot_id for page in mine for one in page] == [taken.snapshot_id]


@case("snapshots")
async def the_list_has_pages(sdk):
    async with (
        sdk.sandbox() as sandbox,
        kept(sdk, sandbox) as one,
        kept(sdk, sandbox) as two,
        kept(sdk, sandbox) as three,
    ):
        found = await pages(sdk.Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, limit=2))
        assert [[item.snapshot_id for item in page] for page in found] == [
            [three.snapshot_id, two.snapshot_id],
            [one.snapshot_id],
        ]


@case("snapshots")
async def a_name_finds_the_latest_and_a_tag_an_earlier_one(sdk):
    name = unique("snap")
    async with sdk.sandbox() as sandbox:
        takes(has(sandbox, "create_snapshot"), "name")
        await go(sandbox.files.write("f", "one"))
        async with kept(sdk, sandbox, name=name) as taken:
            assert any(name in one for one in taken.names)
            await go(sandbox.files.write("f", "two"))
            again = await snapshot(sandbox, name=name)
            assert again.snapshot_id == taken.snapshot_id
            await go(sandbox.files.write("f", "three"))
            tagged = await snapshot(sandbox, name=f"{name.upper()}:V1")
            assert tagged.snapshot_id == f"{name}:v1"
            for reference, content in ((name, "two"), (taken.snapshot_id, "two"), (f"{name}:v1", "three")):
                async with sdk.sandbox(reference) as copy:
                    assert await go(copy.files.read("f")) == content
            if lists_by_name(sdk):
                assert await ids(sdk, name=name) == [f"{name}:v1"]
                assert await ids(sdk, name=f"{name}:default") == [taken.snapshot_id]
                assert await ids(sdk, name=f"{name}-does-not-exist") == []


@case("snapshots")
async def files_only_starts_anew_and_the_source_goes_on(sdk):
    async with sdk.sandbox() as sandbox:
        takes(has(sandbox, "create_snapshot"), "mode")
        await go(sandbox.files.write("kept", "yes"))
        handle = await go(sandbox.commands.run("sleep 1000", background=True, timeout=0))
        before = await go(sandbox.files.read(BOOT_ID))
        async with kept(sdk, sandbox, mode="filesystem") as taken:
            assert await go(sandbox.files.read(BOOT_ID)) == before
            assert handle.pid in [process.pid for process in await go(sandbox.commands.list())]
            async with sdk.sandbox(taken.snapshot_id) as copy:
                assert await go(copy.files.read("kept")) == "yes"
                assert await go(copy.files.read(BOOT_ID)) != before
                assert handle.pid not in [process.pid for process in await go(copy.commands.list())]


@case("snapshots")
async def by_id_and_of_what_is_not_there(sdk):
    async with sdk.sandbox() as sandbox:
        has(sandbox, "create_snapshot")
        taken = await go(sdk.Sandbox.create_snapshot(sandbox.sandbox_id))
        assert await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id)) is True
        async with raises(e2b.SandboxException) as seen:
            await go(sandbox.create_snapshot(name="not a name"))
        assert "400" in str(seen.error), repr(seen.error)
    async with raises(exception("SandboxNotFoundException")):
        await go(sdk.Sandbox.create_snapshot(sandbox.sandbox_id))
    async with sdk.sandbox() as paused:
        await go(paused.pause())
        async with raises(e2b.SandboxException) as seen:
            await go(paused.create_snapshot())
        assert "paused" in str(seen.error), repr(seen.error)


@case("fork", core=True)
async def a_fork_is_another_sandbox_with_the_same_files(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("inherited", "yes"))
        async with forked(sdk, sandbox) as copies:
            (copy,) = copies
            assert copy.sandbox_id != sandbox.sandbox_id
            assert await go(copy.is_running()) and await go(sandbox.is_running())
            assert await go(copy.files.read("inherited")) == "yes"
            await go(copy.files.write("only-in-copy", "x"))
            assert not await go(sandbox.files.exists("only-in-copy"))


@case("fork")
async def a_fork_of_version_2_without_memory_has_the_files_and_no_process(sdk):
    """What later SDKs send for `keep_memory=False`."""
    async with sdk.sandbox(envs={"KEPT": "env"}) as sandbox:
        await go(sandbox.files.write("inherited", "yes"))
        await go(sandbox.commands.run("sleep 4714", background=True))
        headers = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
        body = json.dumps({"memory": False, "timeout": 60}).encode()
        status, _, answer = fetch(f"{URL}/v2/sandboxes/{sandbox.sandbox_id}/fork", "POST", body, headers)
        assert status == 201, answer
        copy = await go(sdk.Sandbox.connect(json.loads(answer)[0]["sandbox"]["sandboxID"]))
        try:
            assert await go(copy.files.read("inherited")) == "yes"
            shown = await go(copy.commands.run("echo $KEPT; pgrep -f 'sleep 471[4]' || echo none"))
            assert shown.stdout == "env\nnone\n", shown
            assert (await go(sandbox.commands.run("pgrep -fc 'sleep 471[4]'"))).stdout == "1\n", "the source goes on"
        finally:
            await go(copy.kill())


@case("fork", core=True)
async def copies_go_on_from_the_same_moment_and_part(sdk):
    async with sdk.sandbox(envs={"KEPT": "env"}, metadata={"case": "fork"}) as sandbox:
        _, kept_number = await serve(sandbox)
        counter = await go(sandbox.commands.run(COUNTER, background=True, timeout=0))
        async with forked(sdk, sandbox, count=3, timeout=60) as copies:
            assert len({copy.sandbox_id for copy in copies} | {sandbox.sandbox_id}) == 4
            boots = set()
            for copy in [*copies, sandbox]:
                assert await number(copy) == kept_number
                assert counter.pid in [process.pid for process in await go(copy.commands.list())]
                assert (await go(copy.commands.run("echo $KEPT"))).stdout == "env\n"
                assert (await go(copy.get_info())).metadata["case"] == "fork"
                boots.add(await go(copy.files.read("/proc/sys/kernel/random/boot_id")))
            assert len(boots) == 4, "each has a boot id of its own"

            async def moves(copy, before):
                return int(await go(copy.files.read("/tmp/count"))) > before

            for copy in copies:
                before = int(await go(copy.files.read("/tmp/count")))
                await until(lambda copy=copy, before=before: moves(copy, before))


@case("fork")
async def a_transaction_a_terminal_session_and_a_node_server_go_on(sdk):
    async with sdk.sandbox() as sandbox:

        async def exists(sandbox, path):
            return await go(sandbox.files.exists(path))

        async def asked(sandbox):
            routed = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "3000"}
            status, _, body = await asyncio.to_thread(lambda: fetch(URL, headers=routed))
            return status == 200 and body

        await go(sandbox.files.write("/tmp/transaction.py", TRANSACTION))
        await go(sandbox.commands.run("python3 /tmp/transaction.py", background=True, timeout=0))
        await go(sandbox.commands.run(f'node -e "{NODE}"', background=True, timeout=0))
        await go(sandbox.commands.run("tmux new-session -d -s work && tmux send-keys -t work KEPT=in-the-shell Enter"))
        await until(lambda: exists(sandbox, "/tmp/begun"))
        assert await until(lambda: asked(sandbox)) == b"1"
        async with forked(sdk, sandbox, timeout=60) as (copy,):
            assert await until(lambda: asked(copy)) == b"2"
            assert await asked(sandbox) == b"2"
            await go(copy.commands.run("tmux send-keys -t work 'echo $KEPT > /tmp/kept' Enter; touch /tmp/commit"))
            await until(lambda: exists(copy, "/tmp/kept"))
            await until(lambda: exists(copy, "/tmp/committed"))
            assert await go(copy.files.read("/tmp/kept")) == "in-the-shell\n"
            rows = "python3 -c \"import sqlite3; print(list(sqlite3.connect('/home/user/t.db').execute('select * from numbers')))\""
            assert (await go(copy.commands.run(rows))).stdout == "[(1,), (2,)]\n"
            assert (await go(sandbox.commands.run(rows))).stdout == "[]\n"


@case("fork")
async def a_copy_has_a_name_and_a_machine_id_of_its_own(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.commands.run("echo 0123456789abcdef0123456789abcdef > /etc/machine-id", user="root"))
        about = "hostname; cat /etc/hostname /etc/machine-id; getent hosts $(hostname) > /dev/null && echo known"
        before = (await go(sandbox.commands.run(about))).stdout.split()
        async with forked(sdk, sandbox, count=2, timeout=60) as copies:
            for copy in copies:
                name, file, machine, known = (await go(copy.commands.run(about))).stdout.split()
                assert name == file == copy.sandbox_id and known == "known"
                assert len(machine) == 32 and machine != before[2]
            assert (await go(sandbox.commands.run(about))).stdout.split() == before
            # It keeps them.
            await go(copies[0].pause())
            await go(copies[0].connect())
            assert (await go(copies[0].commands.run("hostname"))).stdout.strip() == copies[0].sandbox_id


@case("fork")
async def a_fork_has_tokens_of_its_own(sdk):
    async with sdk.sandbox(network={"allow_public_traffic": False}) as sandbox:
        await serve(sandbox)
        async with forked(sdk, sandbox, timeout=60) as (copy,):
            routed = {"E2b-Sandbox-Id": copy.sandbox_id, "E2b-Sandbox-Port": "8000"}
            theirs = {**routed, "e2b-traffic-access-token": sandbox.traffic_access_token}
            own = {**routed, "e2b-traffic-access-token": copy.traffic_access_token}
            assert sandbox.traffic_access_token != copy.traffic_access_token
            assert await asyncio.to_thread(lambda: fetch(URL, headers=theirs)[0]) == 403

            async def is_open():
                return await asyncio.to_thread(lambda: fetch(URL, headers=own)[0]) == 200

            await until(is_open)


@case("fork")
async def by_id_and_errors(sdk):
    sandbox = await go(sdk.Sandbox.create(timeout=60))
    try:
        has(sandbox, "fork")
        (copy,) = await go(sdk.Sandbox.fork(sandbox.sandbox_id))
        await go(copy.kill())
        for count in (0, 21):
            async with raises(e2b.InvalidArgumentException, e2b.SandboxException):
                await go(sandbox.fork(count=count))
        await go(sandbox.pause())
        async with raises(e2b.SandboxException) as seen:
            await go(sandbox.fork())
        assert "409" in str(seen.error) and "paused" in str(seen.error), repr(seen.error)
    finally:
        await go(sandbox.kill())
    async with raises(exception("SandboxNotFoundException")):
        await go(sandbox.fork())


@case("fork", core=True)
async def a_copy_that_cannot_be_made_is_an_error_beside_the_others(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("inherited", "yes"))
        with one_copy_fewer() as api_url:
            async with forked(sdk, sandbox, count=3, timeout=60, api_url=api_url) as copies:
                *made, refused = copies
                assert type(refused) is exception("RateLimitException") and LIMIT in str(refused), repr(refused)
                assert len(made) == 2
                for copy in made:
                    assert await go(copy.files.read("inherited")) == "yes"


@case("fork")
async def a_volume_is_shared_with_the_copies(sdk):
    async with Made(sdk) as volume, sdk.sandbox(volume_mounts={"/mnt/data": volume}) as sandbox:
        await go(sandbox.files.write("/mnt/data/before", "fork"))
        async with forked(sdk, sandbox, timeout=60) as (copy,):
            assert await go(copy.files.read("/mnt/data/before")) == "fork"
            await go(copy.files.write("/mnt/data/from-copy", "copy"))
            await go(sandbox.files.write("/mnt/data/from-source", "source"))
            assert await go(volume.read_file("/from-copy")) == "copy"

            async def reads(sandbox, path, content):
                found = await go(sandbox.files.exists(path))
                return found and await go(sandbox.files.read(path)) == content

            await until(lambda: reads(sandbox, "/mnt/data/from-copy", "copy"))
            await until(lambda: reads(copy, "/mnt/data/from-source", "source"))


@case("fork")
async def connections_to_the_outside_are_closed_in_a_copy_and_not_in_the_source(sdk):
    async with sdk.sandbox() as sandbox:
        caller = await call_outside(sandbox, "> /tmp/said")
        async with forked(sdk, sandbox, timeout=60) as (copy,):
            said = await until(lambda: go(copy.files.read("/tmp/said")))
            assert said.startswith(("failed ", "read b''")), said
            assert await go(sandbox.files.read("/tmp/said")) == ""
            assert caller.pid in [process.pid for process in await go(sandbox.commands.list())]


@case("fork")
async def a_fork_is_no_snapshot_and_no_session(sdk):
    key = unique("session")
    async with sdk.sandbox(metadata={"isopod.session": key}) as sandbox:
        if not hasattr(sandbox, "list_snapshots"):
            raise Absent("no list_snapshots")
        async with forked(sdk, sandbox) as (copy,):
            assert await ids(sdk, sandbox_id=sandbox.sandbox_id) == []
            assert "isopod.session" not in (await go(copy.get_info())).metadata
            async with sdk.sandbox(metadata={"isopod.session": key}) as same:
                assert same.sandbox_id == sandbox.sandbox_id
