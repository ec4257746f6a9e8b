"""The third seed: its example and its agent with our tool in place of the one that calls what the SDK doesn't have."""

import asyncio
import types

import pytest
import seedtext

from isopod.compat import sentient
from isopod.compat.sentient import E2BSandboxInput, E2BSandboxTool

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
    defaults = E2BSandboxInput("1")
    assert (defaults.files, defaults.template, defaults.timeout_seconds) == (None, "python3", 600)
    with pytest.raises(ValueError):
        E2BSandboxInput("1", timeout_seconds=10)


def test_a_task_in_one_call(alive):
    async def use(**given):
        return await E2BSandboxTool().execute(E2BSandboxInput(**given))

    done = asyncio.run(use(code="print(open('a.txt').read()); 6 * 7", files={"a.txt": "x"}))
    assert (done.status, done.stdout, done.error) == ("success", "x\n", None)
    assert [one.text for one in done.results] == ["42"] and done.metadata["execution_time_ms"] > 0
    failed = asyncio.run(use(code="1/0"))
    assert (failed.status, failed.error) == ("error", "ZeroDivisionError: division by zero")
    package = {"package.json": '{"name": "x", "version": "1.0.0"}'}
    code = "import os; print(os.path.exists('package-lock.json'))"
    installed = asyncio.run(use(code=code, files=package, install_dependencies=True))
    assert (installed.status, installed.stdout) == ("success", "True\n"), installed
    broken = asyncio.run(use(code="1", files={"requirements.txt": "no such line ]["}, install_dependencies=True))
    assert broken.status == "error" and broken.error.startswith("exit status")
    assert not any(alive(one.sandbox_id) for one in (done, failed, installed, broken))


def test_without_a_sandbox_or_a_key_it_says_so(monkeypatch):
    with pytest.raises(RuntimeError, match="Call create_sandbox first"):
        asyncio.run(E2BSandboxTool().run_code("1"))
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(ValueError, match="E2B_API_KEY"):
        E2BSandboxTool()


def test_a_second_create_ends_the_first(alive):
    async def use():
        async with E2BSandboxTool() as tool:
            first, second = await tool.create_sandbox(), await tool.create_sandbox("python3")
            assert not alive(first) and alive(second)
            with pytest.raises(ValueError):
                await tool.write_files({"": "x"})
        return second

    assert not alive(asyncio.run(use()))


def test_only_lines_for_a_program_go_to_the_shell():
    assert sentient._is_command("python app.py") and sentient._is_command(" npm run build\n")
    assert not sentient._is_command("python") and not sentient._is_command("ls -la")
    assert not sentient._is_command("x = 1\npython app.py")
