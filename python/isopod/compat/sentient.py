"""Sentient Core's sandbox tool, on E2B's asynchronous SDK.

    async with E2BSandboxTool() as sandbox:
        await sandbox.create_sandbox("python3")
        await sandbox.write_files({"app.py": "print('Hello from E2B!')"})
        print((await sandbox.run_command("python app.py"))["stdout"])
"""

from __future__ import annotations

import ast
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from .._http import Settings

__all__ = ["E2BSandboxInput", "E2BSandboxTool", "ExecutionResult"]

_NOT_CREATED = "Sandbox not initialized. Call create_sandbox first."
#: Programs by which a line that isn't Python is known to be meant for the shell.
_PROGRAMS = frozenset(["python", "python3", "pip", "pip3", "node", "npm", "npx", "bash", "sh"])


@dataclass
class E2BSandboxInput:
    """What a model gives to the tool."""

    code: str
    #: Files to write before the code runs, by path.
    files: Optional[dict[str, str]] = None
    template: str = "python3"
    #: Seconds that the sandbox may live, 30 to 3600.
    timeout_seconds: int = 600
    #: Install what ``package.json`` or ``requirements.txt`` among the files name.
    install_dependencies: bool = False

    def __post_init__(self) -> None:
        if not 30 <= self.timeout_seconds <= 3600:
            raise ValueError("timeout_seconds must be 30 to 3600")


@dataclass
class ExecutionResult:
    """A whole task: ``status`` is ``success`` or ``error``."""

    status: str
    stdout: str
    stderr: str
    error: Optional[str]
    results: list[Any]
    #: ``execution_time_ms``, and ``memory_usage_mb`` once the server has measured it.
    metadata: dict[str, Any] = field(default_factory=dict)
    sandbox_id: Optional[str] = None


class E2BSandboxTool:
    """One sandbox at a time. Creating another ends the one before."""

    def __init__(self, api_key: Optional[str] = None, *, timeout: int = 600) -> None:
        self._settings = Settings.resolve(api_key)
        self.api_key = self._settings.api_key
        self.timeout = timeout
        self.sandbox: Any = None

    async def initialize(self) -> None:
        """Nothing has to be prepared; agents call this first."""

    async def create_sandbox(self, template: str = "python3") -> str:
        """Creates a sandbox. Returns its id."""
        from e2b_code_interpreter import AsyncSandbox

        await self.close()
        self.sandbox = await AsyncSandbox.create(template, timeout=self.timeout, **self._settings.sdk())
        return str(self.sandbox.sandbox_id)

    async def write_files(self, files: Mapping[str, str]) -> None:
        """When this returns, all files are there."""
        sandbox = self._created()
        if "" in files:
            raise ValueError("the path of a file must not be empty")
        for path, content in files.items():
            await sandbox.files.write(path, content)

    async def run_code(self, code: str) -> dict[str, Any]:
        """Runs Python. A line like ``python app.py``, which is no Python, goes to ``run_command``."""
        if _is_command(code):
            return await self.run_command(code)
        done = await self._created().run_code(code, timeout=300)
        return {
            "stdout": "".join(done.logs.stdout),
            "stderr": "".join(done.logs.stderr),
            "error": f"{done.error.name}: {done.error.value}" if done.error else None,
            "results": done.results,
        }

    async def run_command(self, command: str) -> dict[str, Any]:
        """Runs a line for the shell."""
        from e2b import CommandExitException

        error: Optional[str] = None
        try:
            done: Any = await self._created().commands.run(command, timeout=300)
        except CommandExitException as failed:
            done, error = failed, f"exit status {failed.exit_code}"
        return {"stdout": done.stdout, "stderr": done.stderr, "error": error, "results": []}

    async def install_dependencies(self, files: Mapping[str, str]) -> Optional[dict[str, Any]]:
        """Installs what the files name. None if they name nothing."""
        if "package.json" in files:
            return await self.run_command("npm install")
        if "requirements.txt" in files:
            return await self.run_command("pip install -r requirements.txt")
        return None

    async def execute(self, task: E2BSandboxInput) -> ExecutionResult:
        """A whole task: create, write, install, run, close."""
        begun, self.timeout = time.monotonic(), task.timeout_seconds
        files = task.files or {}
        try:
            sandbox_id = await self.create_sandbox(task.template)
            await self.write_files(files)
            installed = await self.install_dependencies(files) if task.install_dependencies else None
            result = installed if installed and installed["error"] else await self.run_code(task.code)
            metadata = await self._metadata(begun)
        finally:
            await self.close()
        return ExecutionResult("error" if result["error"] else "success", **result, metadata=metadata, sandbox_id=sandbox_id)

    async def close(self) -> None:
        """Ends the sandbox, if there is one."""
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await sandbox.kill()

    async def __aenter__(self) -> "E2BSandboxTool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _metadata(self, begun: float) -> dict[str, Any]:
        measured = await self._created().get_metrics()
        used = {"memory_usage_mb": measured[-1].mem_used / (1024 * 1024)} if measured else {}
        return {"execution_time_ms": (time.monotonic() - begun) * 1000, **used}

    def _created(self) -> Any:
        if self.sandbox is None:
            raise RuntimeError(_NOT_CREATED)
        return self.sandbox


def _is_command(code: str) -> bool:
    """Whether this is one line, no Python, and starts with the name of a program."""
    line = code.strip()
    if "\n" in line or not line or line.split()[0] not in _PROGRAMS:
        return False
    try:
        ast.parse(line)
    except SyntaxError:
        return True
    return False
