"""The first seed: its own code on E2B's SDK, its code with our session manager, and what sessions promise."""

import asyncio
import concurrent.futures
import json
import logging
import os
import pathlib
import sys
import threading
import types

import pytest
import seedtext
import uvicorn
from conftest import TEMPLATE, free_port, program, running, sdk_variables, wait_until
from fastapi.testclient import TestClient
from harness.server import Server
from seedtext import PACKAGE

import isopod
from isopod.compat import raro
from isopod.errors import InvalidRequestError, NotFoundError

INSTALL = PACKAGE + "\n!pip install --quiet --no-index ./tiny-1.0-py3-none-any.whl"
PLOT = """
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.show()
"""


@pytest.fixture
def workspace(unique, tmp_path):
    made = raro.WorkspaceManager(unique, str(tmp_path))
    yield made
    raro.SandboxSession.kill_session(unique)


@pytest.fixture
def seed_tools(monkeypatch, redis_url):
    """`intelligence/tools.py` of the seed. It leaves out its configuration, its workspace and the search library."""
    import redis

    config = types.ModuleType("core.config")
    config.settings = types.SimpleNamespace(E2B_API_KEY=os.environ["E2B_API_KEY"])
    config.logger = logging.getLogger("seed")
    config.redis_client = redis.Redis.from_url(redis_url, decode_responses=True)
    tavily = types.ModuleType("tavily")
    tavily.TavilyClient = object
    for name, module in {"core": types.ModuleType("core"), "core.config": config, "tavily": tavily}.items():
        monkeypatch.setitem(sys.modules, name, module)
    tools = types.ModuleType("intelligence.tools")
    tools.WorkspaceManager = raro.WorkspaceManager
    asyncio.run(seedtext.run(seedtext.block(0, "python", "class SandboxSession"), tools.__dict__))
    return tools


def seed_app(tools, monkeypatch):
    """An application with the seed's endpoint for cleanups."""
    import fastapi
    from fastapi.responses import JSONResponse

    monkeypatch.setitem(sys.modules, "intelligence", types.ModuleType("intelligence"))
    monkeypatch.setitem(sys.modules, "intelligence.tools", tools)
    app = fastapi.FastAPI()
    namespace = {"app": app, "logger": logging.getLogger("seed"), "JSONResponse": JSONResponse}
    asyncio.run(seedtext.run(seedtext.block(0, "python", "cleanup_runtime"), namespace))
    return app


def follow_the_seeds_summary(tools, execute, workspace, monkeypatch, alive):
    """The ten steps at the end of the seed."""
    first = execute(INSTALL, workspace)
    assert first["success"], first
    sandbox = tools.SandboxSession.get_or_create(workspace.run_id)
    second = execute("import tiny; print(tiny.answer)", workspace)
    assert second["success"] and "STDOUT:\n42\n" in second["result"], second
    assert tools.SandboxSession.get_or_create(workspace.run_id).sandbox_id == sandbox.sandbox_id
    failed = execute("print('before'); 1/0", workspace)
    assert not failed["success"] and failed["error"].startswith("RUNTIME ERROR: ZeroDivisionError: division by zero\n")
    assert failed["logs"].startswith("STDOUT:\nbefore\n")
    assert alive(sandbox.sandbox_id), "a failed cell must not end the sandbox"
    cleaned = TestClient(seed_app(tools, monkeypatch)).delete(f"/runtime/{workspace.run_id}/cleanup")
    assert (cleaned.status_code, cleaned.json()) == (200, {"status": "cleaned", "run_id": workspace.run_id})
    assert not alive(sandbox.sandbox_id)


def test_the_seeds_own_code_runs_unchanged(seed_tools, workspace, monkeypatch, alive):
    follow_the_seeds_summary(seed_tools, seed_tools._run_e2b_sandbox, workspace, monkeypatch, alive)


def test_the_seeds_flow_runs_with_our_session_manager(workspace, monkeypatch, alive):
    seedtext.text(0)
    follow_the_seeds_summary(raro, raro._run_e2b_sandbox, workspace, monkeypatch, alive)


def test_the_seeds_own_code_moves_files_and_plots(seed_tools, workspace, alive):
    given = pathlib.Path(workspace.input_dir, "in.csv")
    given.write_text("1,2")
    code = "data = open('in.csv').read(); open('out.bin', 'wb').write(bytes(range(256)) + data.encode())\n" + PLOT
    first = seed_tools._run_e2b_sandbox(code, workspace)
    assert first["success"] and {"in.csv", "out.bin"} <= set(first["files_generated"]), first
    [plot] = [name for name in first["files_generated"] if name.startswith(f"plot_{workspace.run_id}_")]
    written = {name: pathlib.Path(workspace.output_dir, name).read_bytes() for name in (plot, "out.bin")}
    assert written["out.bin"] == bytes(range(256)) + b"1,2"
    assert written[plot].startswith(b"\x89PNG\r\n\x1a\n")
    given.write_text("3,4,5")
    second = seed_tools._run_e2b_sandbox("print(data, open('in.csv').read())", workspace)
    assert second["success"] and second["result"].startswith("STDOUT:\n1,2 3,4,5\n"), second
    sandbox = seed_tools.SandboxSession.get_or_create(workspace.run_id).sandbox_id
    seed_tools.SandboxSession.kill_session(workspace.run_id)
    assert not alive(sandbox)


class AgentService:
    """The seed's application as the server's agent service. Its agents run their prompt as code, by the seed's function."""

    def __init__(self, tools, app, port, base):
        self.requests = []
        self.sandboxes = []

        @app.middleware("http")
        async def note(request, call_next):
            self.requests.append(f"{request.method} {request.url.path}")
            return await call_next(request)

        @app.post("/invoke")
        def invoke(asked: dict):
            done = tools._run_e2b_sandbox(asked["prompt"], raro.WorkspaceManager(asked["run_id"], base))
            key = tools.SandboxSession.get_redis_key(asked["run_id"])
            self.sandboxes.append((tools.redis_client.get(key), 0 < tools.redis_client.ttl(key) <= 3600))
            return {"agent_id": asked["agent_id"], "success": done["success"], "output": done, "error": done.get("error")}

        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self):
        self.thread.start()
        wait_until(lambda: self.server.started or not self.thread.is_alive())
        assert self.server.started, "the agent service did not start"
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def kernel(redis_url):
    """A server that has an agent service. It tells it of the end of every run, so other tests can't use it."""
    place = {"AGENT_HOST": "127.0.0.1", "AGENT_PORT": str(free_port())}
    with running(Server(program(), prepare=TEMPLATE, variables={"REDIS_URL": redis_url} | place)) as server:
        yield server


@pytest.fixture
def on_kernel(kernel, monkeypatch):
    """The environment of programs that use this server."""
    for name, value in sdk_variables(kernel).items():
        monkeypatch.setenv(name, value)
    return kernel


@pytest.mark.parametrize("database", [0, 1], ids=["redis_of_the_server", "redis_of_its_own"])
@pytest.mark.parametrize("last, status", [("print(tiny.answer)", "completed"), ("1/0", "failed")])
def test_a_run_of_two_agents_ends_with_one_cleanup_call(
    on_kernel, seed_tools, monkeypatch, redis_url, tmp_path, alive, database, last, status
):
    """The ten steps with a workflow: the server is the seed's kernel. With a Redis of its own, only the service knows the sandbox."""
    import redis

    monkeypatch.setattr(seed_tools, "redis_client", redis.Redis.from_url(f"{redis_url}/{database}", decode_responses=True))
    agents = [{"id": "first", "prompt": INSTALL}, {"id": "second", "prompt": f"import tiny; {last}", "depends_on": ["first"]}]
    port = int(on_kernel.variables["AGENT_PORT"])
    with AgentService(seed_tools, seed_app(seed_tools, monkeypatch), port, str(tmp_path)) as service:
        run = isopod.workflow({"nodes": agents}).start()
        assert run.wait().status == status
        wait_until(lambda: run.state().raw["cleaned_up"])
    state = run.state()
    assert service.requests == ["POST /invoke", "POST /invoke", f"DELETE /runtime/{run.run_id}/cleanup"]
    assert [(one["url"], one["cleanup"]) for one in state.raw["agent_services"]] == [(None, "done")]
    [(sandbox, has_an_hour), again] = service.sandboxes
    assert sandbox and has_an_hour and again == (sandbox, True), "the agents must share a sandbox, which Redis names for an hour"
    if status == "completed":
        assert "STDOUT:\n42\n" in state.output("second")["result"]
    else:
        assert "ZeroDivisionError" in state.node("second")["error"]
    assert not alive(sandbox)
    assert not seed_tools.redis_client.exists(seed_tools.SandboxSession.get_redis_key(run.run_id))


def test_the_seeds_code_and_ours_share_the_sandbox_of_a_run(seed_tools, workspace, redis_url):
    ours = raro.SandboxSession.get_or_create(workspace.run_id)
    assert seed_tools.redis_client.get(raro.SandboxSession.get_redis_key(workspace.run_id)) == ours.sandbox_id
    assert seed_tools.SandboxSession.get_redis_key("r") == raro.SandboxSession.get_redis_key("r")
    assert seed_tools.SandboxSession.get_or_create(workspace.run_id).sandbox_id == ours.sandbox_id


def test_agents_that_start_at_once_get_one_sandbox(unique):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: raro.SandboxSession.get_or_create(unique).sandbox_id, range(8)))
    assert len(found) == 1
    assert raro.SandboxSession.kill_session(unique) and not raro.SandboxSession.kill_session(unique)


def test_awaited_sessions_are_those_of_the_blocking_ones(unique, alive):
    """Four agents of one event loop, with the seed's names."""

    async def use():
        found = await asyncio.gather(*(raro.AsyncSandboxSession.get_or_create(unique) for _ in range(4)))
        assert len({one.sandbox_id for one in found}) == 1
        assert (await found[0].run_code("x = 41; x + 1")).text == "42"
        assert raro.AsyncSandboxSession.get_redis_key("r") == raro.SandboxSession.get_redis_key("r")
        assert raro.SandboxSession.get_or_create(unique).sandbox_id == found[0].sandbox_id
        assert await raro.AsyncSandboxSession.kill_session(unique) and not await raro.AsyncSandboxSession.kill_session(unique)
        return found[0].sandbox_id

    assert not alive(asyncio.run(use()))


def test_awaited_calls_share_sandbox_and_workspace(workspace, alive):
    manager = raro.AsyncE2BSessionManager()
    with open(os.path.join(workspace.input_dir, "in.csv"), "w") as file:
        file.write("1,2")

    async def use():
        made = await raro.arun_e2b_sandbox("x = open('in.csv').read(); open('out.txt', 'w').write(x)", workspace)
        assert made == {"success": True, "result": made["result"], "files_generated": ["out.txt"]}
        assert workspace.read("out.txt") == "1,2" and await workspace.aupload(manager.session(workspace.run_id)) == 0
        failed = await manager.execute("print(x); 1/0", workspace, agent_id="ada")
        assert not failed["success"] and failed["error"].startswith("RUNTIME ERROR: ZeroDivisionError")
        assert failed["logs"].startswith("STDOUT:\n1,2\n")
        calls = (manager.call_tool("run_command", {"command": f"echo said by {agent}"}, workspace) for agent in ("ada", "eve"))
        ada, eve = await asyncio.gather(*calls)
        assert "said by ada" in ada["result"] and "said by eve" in eve["result"], (ada, eve)
        os.remove(os.path.join(workspace.output_dir, "out.txt"))
        missing = await workspace.adownload(manager.session(workspace.run_id), ["out.txt", "none"])
        assert list(missing) == ["none"] and workspace.read("out.txt") == "1,2"
        sandbox = await manager.session(workspace.run_id).sandbox_id()
        assert await manager.cleanup(workspace.run_id)
        return sandbox

    assert not alive(asyncio.run(use()))


@pytest.fixture(params=["blocking", "awaited"])
def tool_call(request):
    """The seed's `execute_tool_call`, in both forms."""
    if request.param == "blocking":
        return raro.execute_tool_call
    return lambda *arguments, **named: asyncio.run(raro.aexecute_tool_call(*arguments, **named))


def test_a_models_tool_calls_work_in_one_sandbox_and_its_workspace(tool_call, workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("RFS_BASE", str(tmp_path))
    run = workspace.run_id
    with open(os.path.join(workspace.input_dir, "in.csv"), "w") as file:
        file.write("1,2")
    first = tool_call("execute_python", {"code": "x = open('in.csv').read(); open('d.txt', 'w').write(x + ',3')"}, run)
    assert first["success"] and first["files_generated"] == ["d.txt"], first
    assert tool_call("read_file", {"filename": "d.txt"}, run) == {"success": True, "result": "1,2,3"}
    assert tool_call("execute_python", {"code": "print(x)"}, run_id=run)["result"].startswith("STDOUT:\n1,2\n")
    assert tool_call("execute_python", {"code": "1/0"}, run)["error"].startswith("RUNTIME ERROR: ZeroDivisionError")
    written = tool_call("write_file", {"filename": "notes/a.txt", "content": "ä"}, run)
    assert written == {"success": True, "result": "Successfully saved to notes/a.txt", "files_generated": ["notes/a.txt"]}
    assert workspace.read("notes/a.txt") == "ä"
    listed = tool_call("list_files", {}, run)
    assert listed["success"] and "Inputs: ['in.csv']\nOutputs: ['d.txt', 'notes/a.txt']" in listed["result"], listed
    # Tools that only the server has.
    command = tool_call("run_command", {"command": "cat in.csv; echo made > m.txt"}, run, ws=workspace)
    assert set(command) == {"success", "result", "files_generated"} and command["files_generated"] == ["m.txt"], command
    assert "1,2" in command["result"] and workspace.read("m.txt") == "made\n"


def test_wrong_tool_calls_are_results_that_a_model_can_read(tool_call, workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("RFS_BASE", str(tmp_path))
    run = workspace.run_id
    assert tool_call("no_such_tool", {}, run) == {"success": False, "error": "Unknown tool: no_such_tool"}
    # The server of the tests has no search service.
    assert tool_call("web_search", {"query": "x"}, run) == {"success": False, "error": "Unknown tool: web_search"}
    assert tool_call("read_file", {"filename": "none"}, run) == {"success": False, "error": "File 'none' not found."}
    for name, arguments in (
        ("read_file", {"filename": "../../secret"}),
        ("write_file", {"filename": "/etc/isopod-test", "content": "x"}),
        ("write_file", {"filename": "", "content": "x"}),
        ("write_file", {"filename": "x", "content": {"not": "text"}}),
        ("execute_python", ["no object"]),
    ):
        refused = tool_call(name, arguments, run)
        assert not refused["success"] and refused["error"].startswith("Tool execution error: "), (name, refused)
    left = [name for folder, _, names in os.walk(tmp_path) for name in names]
    assert left == [], "a write that failed leaves nothing"
    wrong = tool_call("run_command", {"line": "true"}, run)
    assert not wrong["success"] and "invalid arguments" in wrong["error"], wrong
    monkeypatch.setenv("RFS_BASE", "/proc/none")
    assert tool_call("list_files", {}, run)["error"].startswith("Tool execution error: ")
    monkeypatch.setenv("RFS_BASE", str(tmp_path))
    monkeypatch.delenv("E2B_API_KEY")
    no_key = {"success": False, "error": "Failed to initialize E2B Sandbox connection."}
    assert tool_call("execute_python", {"code": "1"}, run) == no_key


def test_a_prompt_has_the_definitions_of_chosen_tools():
    """RARO reads the tools' calls out of the model's text, so the prompt has to explain them."""
    names = ["write_file", "execute_python", "no_such_tool"]
    told = raro.get_tool_definitions_for_prompt(names)
    described = json.loads(told)
    assert [tool["name"] for tool in described] == ["write_file", "execute_python"]
    assert all(set(tool) == {"name", "description", "parameters"} for tool in described)
    assert described[0]["parameters"]["required"] == ["filename", "content"]
    assert asyncio.run(raro.aget_tool_definitions_for_prompt(names)) == told
    assert json.loads(raro.get_tool_definitions_for_prompt([])) == []


def test_only_new_and_changed_inputs_are_sent(workspace, tmp_path):
    manager, session = raro.E2BSessionManager(), isopod.session(workspace.run_id)
    inputs = tmp_path / "sessions" / workspace.run_id / "input"
    (inputs / "a").mkdir(parents=True)
    (inputs / "a" / "x.csv").write_text("1")
    (inputs / "x.csv").write_text("2")
    show = "print(open('a/x.csv').read(), open('x.csv').read())"
    assert "STDOUT:\n1 2\n" in manager.execute(show, workspace)["result"]
    assert workspace.upload(session) == 0
    assert session.execute("1").sync["uploaded"] == 0
    (inputs / "x.csv").write_text("three")
    (inputs / "late.csv").write_text("4")
    assert workspace.upload(session) == 2
    changed = session.execute("print(open('x.csv').read(), open('late.csv').read())")
    assert changed.stdout == "three 4\n" and changed.sync["uploaded"] == 2
    assert changed.files_generated == [], "inputs are not what a call made"


def test_what_a_call_makes_comes_to_the_output(workspace):
    manager = raro.E2BSessionManager()
    code = "import os; os.makedirs('d/e'); open('d/e/new.bin', 'wb').write(bytes(range(256)))"
    made = manager.execute(code, workspace)
    assert made["files_generated"] == ["d/e/new.bin"]
    assert open(os.path.join(workspace.output_dir, "d/e/new.bin"), "rb").read() == bytes(range(256))
    assert manager.execute("1", workspace)["files_generated"] == []
    plots = [manager.execute(PLOT, workspace)["files_generated"] for _ in range(2)]
    names = [name for made in plots for name in made if name.endswith(".png")]
    assert len(set(names)) == 2 and all(name.startswith(f"plot_{workspace.run_id}_") for name in names)
    for name in names:
        assert open(os.path.join(workspace.output_dir, name), "rb").read().startswith(b"\x89PNG")
    assert manager.execute("x = 1", workspace)["result"] == "Execution successful (No stdout)."


def test_a_file_that_cannot_be_saved_is_told(workspace):
    os.mkdir(os.path.join(workspace.output_dir, "taken"))
    done = raro.E2BSessionManager().execute("open('taken', 'w').write('x'); open('free', 'w').write('y')", workspace)
    assert done["success"] and done["files_generated"] == ["free"]
    assert "[SYSTEM: 'taken' could not be saved: " in done["result"]
    assert sorted(os.listdir(workspace.output_dir)) == ["free", "taken"], "what failed leaves nothing"


def test_a_workspace_keeps_to_its_directories(workspace):
    workspace.write("notes/a.txt", "x" * 50_001)
    assert workspace.read("notes/a.txt").endswith("...[TRUNCATED]...")
    assert workspace.read("none").startswith("Error:")
    assert "notes/a.txt" in workspace.list_contents()
    for name in ("../x", "/etc/hostname"):
        with pytest.raises(ValueError, match="leads out"):
            workspace.read(name)


def test_a_shared_directory_is_not_copied(workspace, tmp_path):
    shared = raro.WorkspaceManager(workspace.run_id, str(tmp_path), shared=True)
    open(os.path.join(shared.input_dir, "in.txt"), "w").write("x")
    assert shared.upload(isopod.session(workspace.run_id)) == 0


def test_without_a_server_or_a_key_it_says_so(workspace, monkeypatch):
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:9")
    expected = {"success": False, "error": "Failed to initialize E2B Sandbox connection."}
    assert raro.run_e2b_sandbox("1", workspace) == expected == asyncio.run(raro.arun_e2b_sandbox("1", workspace))
    monkeypatch.delenv("E2B_API_KEY")
    assert raro.SandboxSession.get_or_create(workspace.run_id) is None
    assert asyncio.run(raro.AsyncSandboxSession.get_or_create(workspace.run_id)) is None
    assert raro.run_e2b_sandbox("1", workspace) == expected == asyncio.run(raro.arun_e2b_sandbox("1", workspace))
    monkeypatch.undo()
    unusable = raro.WorkspaceManager("no id", os.path.dirname(workspace.input_dir))
    for refused in (raro.run_e2b_sandbox("1", unusable), asyncio.run(raro.arun_e2b_sandbox("1", unusable))):
        assert not refused["success"] and refused["error"].startswith("Sandbox failed: 400: invalid run id")


def test_a_session_keeps_its_state_and_ends_with_its_block(unique, alive):
    with isopod.session(unique) as run:
        assert run.sandbox_id() is None
        run.execute("x = 41", agent_id="ada")
        assert run.execute("x + 1", agent_id="grace").text == "42"
        done = run.run_command("cat in.txt; exit 3", files={"in.txt": "given", "b.bin": b"\0\xff"})
        assert (done.success, done.exit_code, done.stdout) == (False, 3, "given")
        assert run.execute("print(open('b.bin', 'rb').read())").stdout == "b'\\x00\\xff'\n"
        assert run.execute("console.log(6 * 7)", language="javascript").stdout == "42\n"
        run.write_file("later/note.txt", "hello")
        assert run.execute("open('later/note.txt').read()").text == "hello"
        assert run.read_file("later/note.txt") == b"hello"
        assert run.delete_file("later/note.txt") and not run.delete_file("later/note.txt")
        run.execute("open('made.txt', 'w').write('x')", agent_id="ada")
        assert [(one["filename"], one["agent_id"]) for one in run.artifacts()] == [("made.txt", "ada")]
        assert {"made.txt"} <= {one["filename"] for one in run.files()}
        assert run.sandbox().run_code("x").text == "41"
        sandbox = run.sandbox_id()
        with pytest.raises(NotFoundError):
            run.read_file("none")
    assert not alive(sandbox)
    with pytest.raises(InvalidRequestError):
        isopod.session("no/such id").execute("1")


def test_a_forked_process_has_its_own_connections(unique):
    """As the workers of a web server."""
    with isopod.session(unique) as run:
        run.execute("x = 0")
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if all(run_again(unique, number) for number in range(5)) else 1
                finally:
                    # Nothing of the tests may go on here.
                    os._exit(code)
            children.append(child)
        assert [run.execute(f"{number}").text for number in range(10)] == [str(number) for number in range(10)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]


def run_again(run_id, number):
    return isopod.session(run_id).execute(f"{number} + 100").text == str(number + 100)


def test_an_asynchronous_session_does_the_same(unique, alive):
    async def use():
        async with isopod.asession(unique) as run:
            await run.execute("import asyncio; x = 1")
            both = await asyncio.gather(run.run_command("echo a"), run.run_command("echo b"))
            assert {one.stdout for one in both} == {"a\n", "b\n"}
            await run.write_file("in.txt", b"data")
            assert (await run.execute("open('in.txt').read()")).text == "data"
            assert (await (await run.sandbox()).run_code("x")).text == "1"
            assert await run.artifacts() == [] and await run.read_file("in.txt") == b"data"
            assert await run.delete_file("in.txt") and await run.files() == []
            assert "execute_python" in [one["name"] for one in await run.tools("mcp")]
            assert '"4"' in await run.call("execute_python", {"code": "2 + 2"})
            return await run.sandbox_id()

    assert not alive(asyncio.run(use()))
