"""The third seed: its example and its agent with our tool in place of the one that calls what the SDK doesn't have."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import inspect
import sys
import types

import pytest
import seedtext
from conftest import done_by, wait_until

from isopod.compat import sentient
from isopod.compat.sentient import E2BSandboxInput, E2BSandboxTool, SyncE2BSandboxTool

FIRST = "class E2BSandboxInput"


def test_the_seeds_example_prints_what_it_promises(capsys):
    namespace = {"E2BSandboxTool": E2BSandboxTool}

    async def use():
        await seedtext.run(seedtext.block(2, "python", FIRST), namespace, without=["E2BSandboxTool"])
        assert namespace["E2BSandboxTool"] is E2BSandboxTool
        await namespace["example_usage"]()

    asyncio.run(use())
    assert capsys.readouterr().out == "Hello from E2B!\n\n"


def test_the_seeds_agent_runs_tasks_and_leaves_no_sandbox(alive):
    class BaseAgent:
        """The seed doesn't show it."""

    namespace = {"BaseAgent": BaseAgent, "E2BSandboxTool": E2BSandboxTool, "Task": object}
    namespace["Optional"] = __import__("typing").Optional
    made = []

    class Remembering(E2BSandboxTool):
        async def create_sandbox(self, template="python3"):
            made.append(await super().create_sandbox(template))
            return made[-1]

    def task(code, files=None):
        return types.SimpleNamespace(code=code, files=files)

    async def use():
        await seedtext.run(seedtext.block(2, "python", "class BackendDeveloperAgent"), namespace)
        agent = namespace["BackendDeveloperAgent"](Remembering())
        assert await agent.execute_task(task("print(open('a.txt').read())", {"a.txt": "hello"})) == "hello\n"
        assert await agent.execute_task(task("x = 1")) == "Task completed successfully"
        assert await agent.execute_task(task("1/0")) == "Error: ZeroDivisionError: division by zero"

    asyncio.run(use())
    assert len(made) == 3 and not any(alive(one) for one in made)


def test_the_tools_members_are_the_seeds():
    import ast

    [tool] = [one for one in ast.parse(seedtext.block(2, "python", FIRST)).body if getattr(one, "name", "") == "E2BSandboxTool"]
    for method in tool.body:
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert callable(getattr(E2BSandboxTool, method.name)), method.name
            blocking = getattr(SyncE2BSandboxTool, method.name.replace("__a", "__"))
            is_awaited = isinstance(method, ast.AsyncFunctionDef)
            assert inspect.iscoroutinefunction(getattr(E2BSandboxTool, method.name)) == is_awaited, method.name
            assert callable(blocking) and not inspect.iscoroutinefunction(blocking), method.name


@pytest.fixture(params=["pydantic", "no pydantic"])
def input_class(request, monkeypatch):
    """The input of a task where pydantic is installed, and where it is not."""
    if request.param == "pydantic":
        return E2BSandboxInput
    monkeypatch.setitem(sys.modules, "pydantic", None)
    spec = importlib.util.spec_from_file_location("isopod.compat._without_pydantic", sentient.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert dataclasses.is_dataclass(module.E2BSandboxInput)
    return module.E2BSandboxInput


def test_an_input_has_the_seeds_fields_and_is_checked(input_class):
    given = input_class(code="1")
    assert (given.code, given.files, given.template) == ("1", None, "python3")
    assert (given.timeout_seconds, given.install_dependencies) == (600, False)
    for wrong in ({"timeout_seconds": 10}, {"timeout_seconds": 3601}):
        with pytest.raises(ValueError, match="timeout_seconds"):
            input_class(code="1", **wrong)


def test_where_pydantic_is_installed_an_input_is_a_model():
    import pydantic

    assert issubclass(E2BSandboxInput, pydantic.BaseModel)
    given = E2BSandboxInput.model_validate_json('{"code": "1", "files": {"a.txt": "x"}}')
    assert given.model_dump() == {
        "code": "1", "files": {"a.txt": "x"}, "template": "python3", "timeout_seconds": 600, "install_dependencies": False,
    }
    schema = E2BSandboxInput.model_json_schema()
    assert schema["required"] == ["code"] and all("description" in field for field in schema["properties"].values())
    with pytest.raises(pydantic.ValidationError):
        E2BSandboxInput(files={"a.txt": "x"})


def test_memory_that_was_not_measured_is_none():
    assert sentient._metadata(0, [])["memory_usage_mb"] is None
    measured = [types.SimpleNamespace(mem_used=1), types.SimpleNamespace(mem_used=3 * 1024 * 1024)]
    assert sentient._metadata(0, measured)["memory_usage_mb"] == 3


def test_both_classes_have_the_same_methods_and_parameters():
    for name, method in inspect.getmembers(E2BSandboxTool, inspect.isfunction):
        if not name.startswith("__a"):
            assert inspect.signature(method) == inspect.signature(getattr(SyncE2BSandboxTool, name)), name


def test_the_seeds_example_without_an_event_loop(alive):
    with SyncE2BSandboxTool() as sandbox:
        made = sandbox.create_sandbox("python3")
        sandbox.write_files({"app.py": "print('Hello from E2B!')"})
        assert sandbox.run_code("python app.py")["stdout"] == "Hello from E2B!\n"
        ran = sandbox.run_code("print('out'); 6 * 7")
        assert (ran["stdout"], ran["stderr"], ran["error"], [one.text for one in ran["results"]]) == ("out\n", "", None, ["42"])
        assert sandbox.run_command("exit 3")["error"] == "exit status 3"
    assert sandbox.sandbox is None and not alive(made)


def test_an_agent_that_does_not_await_leaves_no_sandbox(alive):
    """The seed's agent in blocking form, also if its task fails halfway."""
    sandbox, made = SyncE2BSandboxTool(), []

    def execute_task(code, files):
        sandbox.initialize()
        made.append(sandbox.create_sandbox("python3"))
        try:
            sandbox.write_files(files)
            result = sandbox.run_code(code)
            return f"Error: {result['error']}" if result.get("error") else result["stdout"] or "Task completed successfully"
        finally:
            sandbox.close()

    assert execute_task("print(open('a.txt').read())", {"a.txt": "hello"}) == "hello\n"
    assert execute_task("x = 1", {}) == "Task completed successfully"
    assert execute_task("1/0", {}) == "Error: ZeroDivisionError: division by zero"
    with pytest.raises(ValueError):
        execute_task("1", {"": "x"})
    assert len(made) == 4 and not any(alive(one) for one in made)


both = pytest.mark.parametrize("tool_class", [E2BSandboxTool, SyncE2BSandboxTool])


@contextlib.asynccontextmanager
async def block_of(tool):
    """Its `async with` or its `with`."""
    if hasattr(tool, "__aenter__"):
        async with tool:
            yield tool
    else:
        with tool:
            yield tool


@both
def test_a_task_in_one_call(alive, tool_class):
    async def use(**given):
        return await done_by(tool_class().execute(E2BSandboxInput(**given)))

    done = asyncio.run(use(code="print(open('a.txt').read()); 6 * 7", files={"a.txt": "x"}))
    assert (done.status, done.stdout, done.error) == ("success", "x\n", None)
    assert [one.text for one in done.results] == ["42"] and done.metadata["execution_time_ms"] > 0
    assert "memory_usage_mb" in done.metadata, "also of a task that is over before the server has measured it"
    failed = asyncio.run(use(code="1/0"))
    assert (failed.status, failed.error) == ("error", "ZeroDivisionError: division by zero")
    package = {"package.json": '{"name": "x", "version": "1.0.0"}'}
    code = "import os; print(os.path.exists('package-lock.json'))"
    installed = asyncio.run(use(code=code, files=package, install_dependencies=True))
    assert (installed.status, installed.stdout) == ("success", "True\n"), installed
    broken = asyncio.run(use(code="1", files={"requirements.txt": "no such line ]["}, install_dependencies=True))
    assert broken.status == "error" and broken.error.startswith("exit status")
    assert not any(alive(one.sandbox_id) for one in (done, failed, installed, broken))


@both
def test_what_requirements_name_is_installed(tool_class):
    async def use():
        async with block_of(tool_class()) as tool:
            await done_by(tool.create_sandbox())
            assert (await done_by(tool.run_code(seedtext.PACKAGE)))["error"] is None
            files = {"requirements.txt": "--no-index\n./tiny-1.0-py3-none-any.whl\n"}
            await done_by(tool.write_files(files))
            installed = await done_by(tool.install_dependencies(files))
            assert installed["error"] is None, installed
            return await done_by(tool.run_code("import tiny; print(tiny.answer)"))

    assert asyncio.run(use())["stdout"] == "42\n"


@both
def test_a_task_that_runs_long_enough_tells_its_memory(tool_class):
    """The server measures from time to time. The task ends once it has."""
    from e2b_code_interpreter import Sandbox

    tool = tool_class()

    def end_once_measured():
        wait_until(lambda: tool.sandbox is not None)
        sandbox = Sandbox.connect(tool.sandbox.sandbox_id)
        wait_until(sandbox.get_metrics)
        sandbox.files.write("measured", "")

    async def use():
        code = "import os, time\nwhile not os.path.exists('measured'): time.sleep(0.05)"
        return await done_by(tool.execute(E2BSandboxInput(code=code, timeout_seconds=120)))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(end_once_measured)
        done = asyncio.run(use())
        measuring.result()
    assert done.status == "success" and done.metadata["memory_usage_mb"] > 1, done


@both
def test_without_a_sandbox_or_a_key_it_says_so(monkeypatch, tool_class):
    async def use():
        await done_by(tool_class().run_code("1"))

    with pytest.raises(RuntimeError, match="Call create_sandbox first"):
        asyncio.run(use())
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(ValueError, match="E2B_API_KEY"):
        tool_class()


@both
def test_a_second_create_ends_the_first(alive, tool_class):
    async def use():
        async with block_of(tool_class()) as tool:
            first, second = await done_by(tool.create_sandbox()), await done_by(tool.create_sandbox("python3"))
            assert not alive(first) and alive(second)
            with pytest.raises(ValueError):
                await done_by(tool.write_files({"": "x"}))
        await done_by(tool.close())
        return second

    assert not alive(asyncio.run(use()))


def test_only_lines_for_a_program_go_to_the_shell():
    assert sentient._is_command("python app.py") and sentient._is_command(" npm run build\n")
    assert not sentient._is_command("python") and not sentient._is_command("ls -la")
    assert not sentient._is_command("x = 1\npython app.py")
