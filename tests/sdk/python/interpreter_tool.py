"""The example of an agent's tool in examples/."""

import asyncio
import os
import sys
from pathlib import Path

from e2b import TimeoutException
from e2b_code_interpreter import AsyncSandbox
from harness.cases import case
from kit import raises

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from agent_tool import SandboxTool, execute_task  # noqa: E402


@case("tool", only="async")
async def the_tool_writes_files_and_runs_code_and_commands(sdk):
    async with SandboxTool() as tool:
        async with raises(RuntimeError):
            await tool.run_code("1")
        identity = await tool.create_sandbox("python3")
        await tool.write_files({"app.py": "print('Hello from E2B!')", "data/in.txt": "42"})
        assert (await tool.run_command("python3 app.py"))["stdout"] == "Hello from E2B!\n"
        assert (await tool.run_code("print(open('data/in.txt').read())"))["stdout"] == "42\n"
        assert (await tool.run_code("python app.py"))["error"].startswith("SyntaxError")
        assert (await tool.run_command("exit 3"))["error"] == "exit status 3"
    assert not await is_there(identity)


@case("tool", only="async")
async def a_second_create_ends_the_first(sdk):
    async with SandboxTool() as tool:
        first = await tool.create_sandbox("python3")
        second = await tool.create_sandbox("python3")
        assert not await is_there(first) and await is_there(second)
    assert not await is_there(second)


@case("tool", only="async")
async def an_agent_runs_a_task(sdk):
    assert await execute_task("print(open('a.txt').read())", {"a.txt": "hello"}) == "hello\n"
    assert await execute_task("x = 1") == "Task completed successfully"
    assert await execute_task("1/0") == "Error: ZeroDivisionError: division by zero"


@case("tool", only="async")
async def the_practices_of_the_seed_hold(sdk):
    """Always closed, time limits, errors as values, input checked, keys outside, least privilege, one sandbox used
    again, the template made once, and figures of what it uses. (Retries are the SDK's: cases_lifecycle, edge.)"""
    tool = SandboxTool()
    async with raises(ZeroDivisionError):
        async with tool:
            identity = await tool.create_sandbox("python3")
            async with raises(ValueError):
                await tool.write_files({"": "x"})
            inside = await tool.run_code("import os; print(os.getuid(), 'E2B_API_KEY' in os.environ)")
            # As on E2B, code runs as the sandbox's root, which has no rights outside. Commands do not.
            assert inside["stdout"] == "0 False\n", inside
            async with raises(TimeoutException):
                await tool.sandbox.run_code("while True: pass", timeout=1)
            await tool.run_code("kept = 1")
            assert (await tool.run_code("print(kept)"))["stdout"] == "1\n"
            again = await AsyncSandbox.connect(identity)
            assert (await again.commands.run("id -un")).stdout == "user\n"
            for _ in range(100):
                figures = await again.get_metrics()
                if figures:
                    break
                await asyncio.sleep(0.2)
            assert figures[0].mem_total > 0 and figures[0].cpu_count > 0
            raise ZeroDivisionError
    assert not await is_there(identity)


@case("tool", only="async")
async def without_a_key_it_says_so(sdk):
    key = os.environ.pop("E2B_API_KEY")
    try:
        async with raises(ValueError):
            SandboxTool()
    finally:
        os.environ["E2B_API_KEY"] = key


async def is_there(identity):
    page = await AsyncSandbox.list().next_items()
    return identity in [one.sandbox_id for one in page]
