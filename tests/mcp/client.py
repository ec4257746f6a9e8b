"""Cases with the official Python SDK as the client: `client.py auto|legacy stdio|http`. Prints a line of JSON for each case.

`auto` is how version 2 negotiates, and `legacy` the handshake of older ones.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

import api

try:
    from mcp import Client
except ImportError:
    Client = None
    import mcp.types as types
    from pydantic import AnyUrl

MODE, TRANSPORT = sys.argv[1:]
OVER_HTTP = TRANSPORT == "http"
# Then the protocol has no sessions: the clients of a key share their sandboxes.
IS_STATELESS = OVER_HTTP and MODE == "auto"
PROGRAM = os.environ["ISOPOD_PROGRAM"]
NAME, *ONLY = json.loads(os.environ["ISOPOD_ONLY"])
SAVES_MEMORY = bool(os.environ.get("ISOPOD_CRIU"))
TOOLS = {"run_code", "run_command", "read_file", "write_file", "edit_file", "list_files", "upload", "download", "preview_url",
         "create_sandbox", "list_sandboxes", "kill_sandbox", "pause_sandbox", "resume_sandbox", "fork_sandbox", "start_workflow",
         "get_workflow"}
CHART = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.savefig('/tmp/chart.png')\nplt.show()"


class Session:
    """The same calls for both versions of the SDK. Results are the JSON of the protocol."""

    def __init__(self, sdk, logs):
        self.sdk = sdk
        self.logs = logs

    async def call(self, name, progress=None, **arguments):
        return plain(await self.sdk.call_tool(name, arguments, progress_callback=progress))

    async def good(self, name, progress=None, **arguments):
        result = await self.call(name, progress, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    async def bad(self, name, **arguments):
        result = await self.call(name, **arguments)
        assert result["isError"] is True, result
        return result["content"][0]["text"]

    async def read(self, uri):
        uri = uri if Client else AnyUrl(uri)
        return plain(await self.sdk.read_resource(uri))["contents"][0]

    async def cancelled(self, name, **arguments):
        """Starts a call, and cancels it when it has shown something."""
        started = asyncio.Event()

        async def progress(*_):
            started.set()

        running = asyncio.ensure_future(self.call(name, progress, **arguments))
        await asyncio.wait_for(started.wait(), 30)
        if Client is None:
            # This version leaves it to its caller.
            params = types.CancelledNotificationParams(requestId=self.sdk._request_id - 1, reason="test")
            notification = types.CancelledNotification(method="notifications/cancelled", params=params)
            await self.sdk.send_notification(types.ClientNotification(notification))
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def plain(result):
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


@contextlib.asynccontextmanager
async def over_http(options):
    """Options of the program are parts of the URL."""
    pairs = zip(options[::2], options[1::2], strict=True)
    query = urllib.parse.urlencode({name.removeprefix("--").replace("-", "_"): value for name, value in pairs})
    url, headers = f"{os.environ['E2B_API_URL']}/mcp?{query}", {"Authorization": f"Bearer {os.environ['E2B_API_KEY']}"}
    if Client is None:
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(url, headers=headers) as (read, write, _):
            yield read, write
        return
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(30, read=300)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http_client:
        async with streamable_http_client(url, http_client=http_client) as streams:
            yield streams


async def kill_shared(session):
    """What ends with the connection in all other cases."""
    for one in (await session.good("list_sandboxes"))["sandboxes"]:
        if "isopod.session" not in one["metadata"]:
            await session.good("kill_sandbox", sandbox=one["sandbox"])


@contextlib.asynccontextmanager
async def connect(*options, cwd=None):
    variables = {name: os.environ[name] for name in ("E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL")}
    parameters = StdioServerParameters(command=PROGRAM, args=["mcp", *options], env=variables, cwd=cwd)
    streams = over_http(options) if OVER_HTTP else stdio_client(parameters)
    logs = []

    async def log(params):
        logs.append(plain(params))

    if Client is not None:
        async with Client(streams, mode=MODE, logging_callback=log, log_level="info") as client:
            assert client.protocol_version == ("2026-07-28" if MODE == "auto" else "2025-11-25"), client.protocol_version
            session = Session(client, logs)
            yield session
            if IS_STATELESS:
                await kill_shared(session)
        return
    async with streams as (read, write), ClientSession(read, write, logging_callback=log) as session:
        await session.initialize()
        yield Session(session, logs)


READING = ("read", "list", "preview", "get", *(["download"] if OVER_HTTP else []))


async def tools_say_what_they_take_and_do():
    async with connect() as session:
        tools = {tool["name"]: tool for tool in plain(await session.sdk.list_tools())["tools"]}
        assert tools.keys() == TOOLS, tools.keys()
        for name, tool in tools.items():
            assert tool["inputSchema"]["additionalProperties"] is False and tool["outputSchema"]["type"] == "object", tool
            assert tool["annotations"]["readOnlyHint"] is (name.split("_")[0] in READING), tool
        assert tools["kill_sandbox"]["annotations"]["destructiveHint"] and not tools["create_sandbox"]["annotations"]["destructiveHint"]
        assert tools["run_command"]["inputSchema"]["required"] == ["command"], tools["run_command"]["inputSchema"]
    if not OVER_HTTP:
        async with connect("--no-local-files") as session:
            names = {tool["name"] for tool in plain(await session.sdk.list_tools())["tools"]}
            assert names == TOOLS - {"upload", "download"}, names
    assert not api.sandboxes(), "nobody needed one"


async def variables_and_files_stay_from_call_to_call():
    async with connect() as session:
        await session.good("run_code", code="x = 41")
        found = await session.good("run_code", code="print('printed')\nx + 1")
        assert (found["results"][0]["text"], found["stdout"], found["truncated"]) == ("42", "printed\n", False), found
        failed = await session.good("run_code", code="1 / 0")
        assert failed["error"]["name"] == "ZeroDivisionError" and failed["sandbox"] == found["sandbox"], failed
        assert (await session.good("run_code", code="let y = 2; y", language="javascript"))["results"][0]["text"] == "2"
        command = await session.good("run_command", command="echo out; echo err >&2; exit 3", env={"A": "b"})
        assert (command["stdout"], command["stderr"], command["exit_code"]) == ("out\n", "err\n", 3), command
        assert command["sandbox"] == found["sandbox"]


async def files_are_written_read_edited_and_listed():
    async with connect() as session:
        path = "/home/user/project/a.txt"
        assert (await session.good("write_file", path="project/a.txt", content="one\ntwo\nthree\n"))["path"] == path
        part = await session.good("read_file", path=path, first_line=2, lines=1)
        assert (part["text"], part["truncated"], part["size"]) == ("two\n", True, 14), part
        assert (await session.good("edit_file", path=path, old_text="two", new_text="2"))["replaced"] == 1
        assert (await session.good("read_file", path=path))["text"] == "one\n2\nthree\n"
        assert "2 times" in await session.bad("edit_file", path=path, old_text="e\n", new_text="")
        assert "Hint: read_file" in await session.bad("edit_file", path=path, old_text="four", new_text="")
        assert "Hint: list_files" in await session.bad("read_file", path="missing")
        entries = (await session.good("list_files", path="project"))["entries"]
        assert [(one["path"], one["kind"], one["size"]) for one in entries] == [(path, "file", 12)], entries
        await session.good("write_file", path="/tmp/binary", content=base64.b64encode(b"\0\xff").decode(), base64=True)
        assert "no text" in await session.bad("read_file", path="/tmp/binary")


async def pictures_are_pictures():
    async with connect() as session:
        result = await session.call("run_code", code=CHART)
        await session_has_picture(result)
        await session_has_picture(await session.call("read_file", path="/tmp/chart.png"))
        # What only looks like one is left out, and the rest of the result comes.
        fake = "class Fake:\n    def _repr_png_(self):\n        return 'no base64!'\n    def __repr__(self):\n        return 'fake'\nFake()"
        result = await session.call("run_code", code=fake)
        assert not [block for block in result["content"] if block["type"] == "image"], result


async def session_has_picture(result):
    pictures = [block for block in result["content"] if block["type"] == "image"]
    assert len(pictures) == 1 and pictures[0]["mimeType"] == "image/png", result["content"]
    assert base64.b64decode(pictures[0]["data"]).startswith(b"\x89PNG"), "it is a picture"


async def files_are_uploaded_and_downloaded_below_one_directory():
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        (place / "project").mkdir()
        (place / "project" / "in.bin").write_bytes(bytes(range(256)) * 4000)
        for name in ("project/.env", "secret"):
            (place / name).write_text("secret")
        async with connect(cwd=place / "project") as session:
            sent = await session.good("upload", local_path="in.bin", path="/tmp/in.bin")
            assert sent["size"] == 1_024_000, sent
            for bad in (".env", "../secret", "/etc/passwd", "missing"):
                assert "Error: " in await session.bad("upload", local_path=bad, path="/tmp/x")
            await session.good("download", path="/tmp/in.bin", local_path="out.bin")
            assert (place / "project" / "out.bin").read_bytes() == (place / "project" / "in.bin").read_bytes()
            assert "overwrite" in await session.bad("download", path="/tmp/in.bin", local_path="out.bin")
            await session.good("download", path="/tmp/in.bin", local_path="out.bin", overwrite=True)
            for bad in (".bashrc", "../out", "/tmp/out", "missing/out"):
                assert "Error: " in await session.bad("download", path="/tmp/in.bin", local_path=bad)
            assert {path.name for path in (place / "project").iterdir()} == {"in.bin", "out.bin", ".env"}


async def files_travel_in_calls_or_through_signed_urls():
    content = bytes(range(256)) * 1500
    async with connect() as session:
        sent = await session.good("upload", path="in.bin", content=base64.b64encode(content).decode(), base64=True)
        assert (sent["size"], sent["path"]) == (384_000, "/home/user/in.bin"), sent
        found = await session.call("download", path="in.bin")
        [block] = found["content"]
        assert block["type"] == "resource" and base64.b64decode(block["resource"]["blob"]) == content
        assert found["structuredContent"]["size"] == 384_000, found["structuredContent"]
        assert block["resource"]["uri"].endswith("/files/home/user/in.bin"), block["resource"]["uri"]
        large, boundary = content * 2, "x" * 30
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        form = head.encode() + large + f"\r\n--{boundary}--\r\n".encode()
        url = (await session.good("upload", path="/tmp/large file"))["url"]
        await asyncio.to_thread(fetch, url, form, {"Content-Type": f"multipart/form-data; boundary={boundary}"})
        url = (await session.good("download", path="/tmp/large file"))["url"]
        assert await asyncio.to_thread(fetch, url) == large
        for change in (("%2Ftmp%2Flarge%20file", "%2Fetc%2Fpasswd"), ("signature=v1%5F", "signature=v1%5Fx")):
            try:
                raise AssertionError(await asyncio.to_thread(fetch, url.replace(*change)))
            except urllib.error.HTTPError as error:
                assert error.code in (400, 401, 403, 404), error
        assert "8388608" in await session.bad("upload", path="x", content="x" * (8 * 1024 * 1024 + 1))
        assert "base64" in await session.bad("upload", path="x", content="?", base64=True)
        assert "no argument" in await session.bad("upload", path="x", local_path="/etc/passwd")
        assert "Hint: " in await session.bad("download", path="missing")


def fetch(url, body=None, headers=None):
    """By the address of the server, because names below localhost need a resolver that knows them."""
    host, path = url.removeprefix("http://").split("/", 1)
    address = f"{os.environ['E2B_API_URL']}/{path}"
    request = urllib.request.Request(address, data=body, headers={"Host": host} | (headers or {}))
    with api.OPENER.open(request, timeout=60) as answer:
        return answer.read()


async def a_call_during_a_restart_ends_with_an_error():
    async with connect() as session:
        await session.good("run_code", code="x = 6")
        started = asyncio.Event()

        async def progress(*_):
            started.set()

        running = asyncio.ensure_future(session.call("run_command", progress, command="echo started; sleep 98765"))
        await asyncio.wait_for(started.wait(), 30)
        await restart()
        try:
            raise AssertionError(await asyncio.wait_for(running, 60))
        except Exception as error:
            assert "the server restarted while this call ran" in str(error), error
        assert (await session.good("run_code", code="x"))["results"][0]["text"] == "6"


async def a_server_in_the_background_has_a_url():
    async with connect() as session:
        await session.good("write_file", path="/home/user/index.html", content="served")
        started = await session.good("run_command", command="echo up; exec python3 -m http.server 8123", background=True)
        url = (await session.good("preview_url", port=8123))["url"]
        host, port = url.split("://")[1], os.environ["E2B_API_URL"].rsplit(":", 1)[1]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/index.html", headers={"Host": host})

        def answers():
            with contextlib.suppress(OSError):
                return api.OPENER.open(request, timeout=5).read() == b"served"

        await asyncio.to_thread(api.until, answers, f"{url} answers")
        log = await session.good("read_file", path=started["log"])
        assert log["text"].startswith("up\n"), log


async def sandboxes_are_created_paused_resumed_forked_and_killed():
    async with connect() as session:
        first = (await session.good("run_code", code="x = 1"))["sandbox"]
        other = (await session.good("create_sandbox", env={"A": "b"}, metadata={"for": "test"}))["sandbox"]
        assert (await session.good("run_command", command="echo $A", sandbox=other))["stdout"] == "b\n"
        plain_one = (await session.good("create_sandbox", template="base"))["sandbox"]
        assert "Hint: run_command" in await session.bad("run_code", code="1", sandbox=plain_one)
        await session.good("kill_sandbox", sandbox=plain_one)
        assert "isopod template build" in await session.bad("create_sandbox", template="no-such-template")
        listed = {one["sandbox"]: one for one in (await session.good("list_sandboxes"))["sandboxes"]}
        assert listed.keys() == {first, other} and listed[first]["is_default"] and listed[other]["metadata"]["for"] == "test", listed
        assert (await session.good("pause_sandbox"))["paused"] is True
        assert "resume_sandbox" in await session.bad("run_command", command="true")
        assert (await session.good("resume_sandbox"))["sandbox"] == first
        assert (await session.good("run_code", code="x"))["results"][0]["text"] == "1"
        if SAVES_MEMORY:
            copies = (await session.good("fork_sandbox", count=2))["copies"]
            assert len(copies) == 2
            assert (await session.good("run_code", code="x", sandbox=copies[1]))["results"][0]["text"] == "1"
        else:
            assert "Error: " in await session.bad("fork_sandbox")
        assert (await session.good("kill_sandbox", sandbox=other))["killed"] is True
        assert "list_sandboxes" in await session.bad("run_command", command="true", sandbox=other)
        await session.good("kill_sandbox")
        assert (await session.good("run_command", command="true"))["sandbox"] != first
    assert not api.sandboxes(), "all ended with the connection"


async def a_workflow_is_followed_to_its_end():
    told = []

    async def progress(_progress, _total, message):
        told.append(message)

    async with connect() as session:
        workflow = "nodes:\n  - id: one\n    command: echo done\n"
        found = await session.good("start_workflow", progress, workflow=workflow)
        assert found["status"] == "completed", found
        assert (await session.good("get_workflow", run_id=found["run_id"]))["status"] == "completed"
        assert "RunEnded" in "".join(told), told
        assert "Hint: " in await session.bad("start_workflow", workflow="nodes: 7")


async def progress_and_logs_come_while_a_command_runs():
    told, at = [], []

    async def progress(value, _total, message):
        told.append((value, message))
        at.append("answered" in done)

    done = []
    async with connect() as session:
        # It goes on only when the first line was seen.
        command = "echo first; until [ -e /tmp/seen ]; do sleep 0.1; done; echo second"
        running = asyncio.ensure_future(session.good("run_command", progress, command=command))
        while not told:
            await asyncio.sleep(0.05)
            assert not running.done(), running
        assert told[0][1] == "first", told
        await session.good("write_file", path="/tmp/seen", content="")
        assert (await running)["stdout"] == "first\nsecond\n"
        done.append("answered")
        assert told[-1][1] == "second" and told[-1][0] > told[0][0], told
        lines = [(one["logger"], one["data"]) for one in session.logs]
        assert ("stdout", "first") in lines and ("stdout", "second") in lines, session.logs
        cell = "import time\nprint('shown', flush=True)\nwhile not __import__('os').path.exists('/tmp/seen2'): time.sleep(0.1)"
        told.clear()
        running = asyncio.ensure_future(session.good("run_code", progress, code=cell))
        while not told:
            await asyncio.sleep(0.05)
            assert not running.done(), running
        await session.good("write_file", path="/tmp/seen2", content="")
        assert (await running)["stdout"] == "shown\n"


async def a_cancelled_command_is_killed_and_a_cancelled_cell_interrupted():
    async with connect() as session:
        await session.good("run_code", code="x = 1")
        await session.cancelled("run_command", command="echo started; sleep 98765 & sleep 98765")
        while (await session.good("run_command", command="pgrep -fc '^sleep 9876[5]'"))["stdout"] != "0\n":
            await asyncio.sleep(0.1)
        await session.cancelled("run_code", code="import time\nx = 2\nprint('started', flush=True)\ntime.sleep(98765)")
        assert (await session.good("run_code", code="x", timeout_seconds=60))["results"][0]["text"] == "2"


async def what_takes_too_long_is_ended_with_its_output():
    async with connect() as session:
        text = await session.bad("run_command", command="echo begun; sleep 98765", timeout_seconds=1)
        assert "time limit" in text and "begun" in text and "Hint: " in text, text
        text = await session.bad("run_code", code="print('begun', flush=True)\nimport time\ntime.sleep(98765)", timeout_seconds=1)
        assert "time limit" in text and "begun" in text, text


async def a_named_session_outlasts_the_client():
    name = f"mcp-{os.getpid()}"
    async with connect() as session:
        first = (await session.good("run_code", code="kept = 7", session=name))["sandbox"]
        own = (await session.good("run_command", command="true"))["sandbox"]
        assert own != first
    assert api.sandboxes() == {first}, "only the client's own sandbox ended"
    async with connect("--session", name) as session:
        found = await session.good("run_code", code="kept")
        assert (found["results"][0]["text"], found["sandbox"]) == ("7", first), found
        assert (await session.good("run_command", command="true", session=name))["sandbox"] == first
        assert (await session.good("kill_sandbox"))["killed"] is True
    assert not api.sandboxes()


async def a_restart_of_the_server_is_survived():
    async with connect() as session:
        before = await session.good("run_code", code="x = 5")
        await restart()
        after = await session.good("run_code", code="x")
        assert (after["results"][0]["text"], after["sandbox"]) == ("5", before["sandbox"]), after
        assert (await session.good("run_command", command="echo on"))["stdout"] == "on\n"
    api.until_gone(before["sandbox"])


async def restart():
    def ask():
        print("restart", flush=True)
        assert sys.stdin.readline() == "restarted\n"

    await asyncio.to_thread(ask)


async def files_and_logs_are_resources():
    async with connect() as session:
        templates = plain(await session.sdk.list_resource_templates())["resourceTemplates"]
        assert {one["uriTemplate"] for one in templates} == {"sandbox://{sandbox}/files/{+path}", "sandbox://{sandbox}/logs"}
        assert plain(await session.sdk.list_resources())["resources"] == []
        sandbox = (await session.good("write_file", path="/home/user/a b.txt", content="text"))["sandbox"]
        await session.good("write_file", path="/home/user/bin", content="/w==", base64=True)
        listed = {one["name"]: one["uri"] for one in plain(await session.sdk.list_resources())["resources"]}
        assert listed["a b.txt"] == f"sandbox://{sandbox}/files/home/user/a%20b.txt", listed
        assert (await session.read(listed["a b.txt"]))["text"] == "text"
        assert (await session.read("sandbox://current/files/home/user/bin"))["blob"] == "/w=="
        assert "sandbox created" in (await session.read(f"sandbox://{sandbox}/logs"))["text"]
        for bad in ("sandbox://current/files/missing", "sandbox://other/logs", "file:///etc/passwd"):
            try:
                raise AssertionError(await session.read(bad))
            except Exception as error:
                assert type(error).__name__.lower() == "mcperror", error


async def hostile_output_is_data():
    async with connect() as session:
        hostile = r"printf '\033[2J\033]0;title\007\r\377\376\342\200\256x\n'"
        result = await session.call("run_command", command=hostile)
        text = result["content"][0]["text"]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text) and "\\u{1b}[2J" in text and "\ufffd" in text, repr(text)
        assert result["structuredContent"]["stdout"].startswith("\x1b[2J"), "programs get all of it"
        for name, arguments in [("run_command", {"command": "head -c 10000000 /dev/zero | tr '\\0' x"}),
                                ("run_code", {"code": "print('x' * 10_000_000)"}),
                                ("run_code", {"code": "'x' * 10_000_000"}),
                                ("run_code", {"code": "raise Exception('x' * 10_000_000)"})]:
            result = await session.call(name, **arguments)
            assert len(json.dumps(result)) < 400_000, (name, arguments, len(json.dumps(result)))
        shown = []

        async def progress(_value, _total, message):
            shown.append(message)

        await session.good("run_command", progress, command=hostile + "; for i in $(seq 20000); do echo $i; done")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", "".join(shown)) and len(shown) < 1000, shown[:3]
        assert all(len(message) < 9000 for message in shown)
        # Names of files are chosen in the sandbox, too.
        await session.good("run_command", command=r"mkdir /tmp/n; touch /tmp/n/$'a\033[2J\nb'")
        listed = (await session.call("list_files", path="/tmp/n"))["content"][0]["text"]
        assert len(listed.splitlines()) == 1 and "\x1b" not in listed, repr(listed)


HELPERS = (restart, session_has_picture, kill_shared)
ONLY_STDIO = (files_are_uploaded_and_downloaded_below_one_directory,)
ONLY_HTTP = (files_travel_in_calls_or_through_signed_urls, a_call_during_a_restart_ends_with_an_error)
# Without sessions a broken connection ends the call, and version 1.22 does not ask for the rest of a stream.
ONLY_SESSIONS = (a_call_during_a_restart_ends_with_an_error,)
OTHERS = (*HELPERS, *(ONLY_STDIO if OVER_HTTP else ONLY_HTTP), *(ONLY_SESSIONS if IS_STATELESS or Client is None else ()))
CASES = [value for value in list(globals().values()) if asyncio.iscoroutinefunction(value) and value not in OTHERS]


async def main():
    failed = False
    for case in CASES:
        if ONLY and not any(text in f"{NAME} {case.__name__}" for text in ONLY):
            continue
        error, start = None, time.monotonic()
        try:
            await asyncio.wait_for(case(), 120)
        except BaseException:
            error = traceback.format_exc()
        failed |= error is not None
        print(json.dumps({"name": case.__name__, "error": error, "seconds": round(time.monotonic() - start, 1)}), flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)


asyncio.run(main())
