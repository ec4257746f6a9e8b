"""Sentient Core's sandbox tool, on E2B's SDK.

    async with E2BSandboxTool() as sandbox:
        await sandbox.create_sandbox("python3")
        await sandbox.write_files({"app.py": "print('Hello from E2B!')"})
        print((await sandbox.run_command("python app.py"))["stdout"])

``SyncE2BSandboxTool`` has the same methods with blocking calls.
"""

from __future__ import annotations

import ast
import importlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping, Optional

from .._http import Settings

__all__ = ["E2BSandboxInput", "E2BSandboxTool", "ExecutionResult", "SyncE2BSandboxTool"]

#: Seconds that code or a command may take.
_CALL_TIMEOUT = 300
#: Programs by which a line that isn't Python is known to be meant for the shell.
_PROGRAMS = frozenset(["python", "python3", "pip", "pip3", "node", "npm", "npx", "bash", "sh"])


def _installed(module: str) -> Any:
    """The module, or None if it isn't there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


_pydantic = _installed("pydantic")

if TYPE_CHECKING or _pydantic is None:

    @dataclass(kw_only=True)
    class E2BSandboxInput:
        """What a model gives to the tool. A pydantic model where pydantic is installed."""

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

else:
    _Field = _pydantic.Field

    class E2BSandboxInput(_pydantic.BaseModel):
        """What a model gives to the tool."""

        code: str = _Field(..., description="Code to run in the sandbox")
        files: Optional[dict[str, str]] = _Field(None, description="Files to write before the code runs, by path")
        template: str = _Field("python3", description="Template of the sandbox")
        timeout_seconds: int = _Field(600, ge=30, le=3600, description="Seconds that the sandbox may live")
        install_dependencies: bool = _Field(
            False, description="Install what package.json or requirements.txt among the files name"
        )


@dataclass
class ExecutionResult:
    """A whole task: ``status`` is ``success`` or ``error``."""

    status: str
    stdout: str
    stderr: str
    error: Optional[str]
    results: list[Any]
    #: ``execution_time_ms``, and ``memory_usage_mb``, which is None if the task ended before the server measured it.
    metadata: dict[str, Any] = field(default_factory=dict)
    sandbox_id: Optional[str] = None


class _Tool:
    def __init__(self, api_key: Optional[str] = None, *, timeout: int = 600) -> None:
        self._settings = Settings.resolve(api_key)
        self.api_key = self._settings.api_key
        self.timeout = timeout
        self.sandbox: Any = None

    def _created(self) -> Any:
        if self.sandbox is None:
            raise RuntimeError("Sandbox not initialized. Call create_sandbox first.")
        return self.sandbox


class E2BSandboxTool(_Tool):
    """One sandbox at a time. Creating another ends the one before."""

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
        for path, content in _named(files).items():
            await sandbox.files.write(path, content)

    async def run_code(self, code: str) -> dict[str, Any]:
        """Runs Python. A line like ``python app.py``, which is no Python, goes to ``run_command``."""
        if _is_command(code):
            return await self.run_command(code)
        return _result_of_code(await self._created().run_code(code, timeout=_CALL_TIMEOUT))

    async def run_command(self, command: str) -> dict[str, Any]:
        """Runs a line for the shell."""
        from e2b import CommandExitException

        try:
            return _result_of_command(await self._created().commands.run(command, timeout=_CALL_TIMEOUT))
        except CommandExitException as failed:
            return _result_of_command(failed)

    async def install_dependencies(self, files: Mapping[str, str]) -> Optional[dict[str, Any]]:
        """Installs what the files name. None if they name nothing."""
        command = _installer(files)
        return await self.run_command(command) if command else None

    async def execute(self, task: E2BSandboxInput) -> ExecutionResult:
        """A whole task: create, write, install, run, close."""
        begun, self.timeout = time.monotonic(), task.timeout_seconds
        files = task.files or {}
        try:
            sandbox_id = await self.create_sandbox(task.template)
            await self.write_files(files)
            installed = await self.install_dependencies(files) if task.install_dependencies else None
            result = installed if installed and installed["error"] else await self.run_code(task.code)
            metadata = _metadata(begun, await self._created().get_metrics())
        finally:
            await self.close()
        return _done(result, metadata, sandbox_id)

    async def close(self) -> None:
        """Ends the sandbox, if there is one."""
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await sandbox.kill()

    async def __aenter__(self) -> "E2BSandboxTool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncE2BSandboxTool(_Tool):
    """The tool with blocking calls. See ``E2BSandboxTool``."""

    def initialize(self) -> None:
        """Nothing has to be prepared; agents call this first."""

    def create_sandbox(self, template: str = "python3") -> str:
        from e2b_code_interpreter import Sandbox

        self.close()
        self.sandbox = Sandbox.create(template, timeout=self.timeout, **self._settings.sdk())
        return str(self.sandbox.sandbox_id)

    def write_files(self, files: Mapping[str, str]) -> None:
        sandbox = self._created()
        for path, content in _named(files).items():
            sandbox.files.write(path, content)

    def run_code(self, code: str) -> dict[str, Any]:
        if _is_command(code):
            return self.run_command(code)
        return _result_of_code(self._created().run_code(code, timeout=_CALL_TIMEOUT))

    def run_command(self, command: str) -> dict[str, Any]:
        from e2b import CommandExitException

        try:
            return _result_of_command(self._created().commands.run(command, timeout=_CALL_TIMEOUT))
        except CommandExitException as failed:
            return _result_of_command(failed)

    def install_dependencies(self, files: Mapping[str, str]) -> Optional[dict[str, Any]]:
        command = _installer(files)
        return self.run_command(command) if command else None

    def execute(self, task: E2BSandboxInput) -> ExecutionResult:
        begun, self.timeout = time.monotonic(), task.timeout_seconds
        files = task.files or {}
        try:
            sandbox_id = self.create_sandbox(task.template)
            self.write_files(files)
            installed = self.install_dependencies(files) if task.install_dependencies else None
            result = installed if installed and installed["error"] else self.run_code(task.code)
            metadata = _metadata(begun, self._created().get_metrics())
        finally:
            self.close()
        return _done(result, metadata, sandbox_id)

    def close(self) -> None:
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            sandbox.kill()

    def __enter__(self) -> "SyncE2BSandboxTool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _named(files: Mapping[str, str]) -> Mapping[str, str]:
    if "" in files:
        raise ValueError("the path of a file must not be empty")
    return files


def _installer(files: Mapping[str, str]) -> Optional[str]:
    if "package.json" in files:
        return "npm install"
    if "requirements.txt" in files:
        return "pip install -r requirements.txt"
    return None


def _result_of_code(done: Any) -> dict[str, Any]:
    error = f"{done.error.name}: {done.error.value}" if done.error else None
    printed = {"stdout": "".join(done.logs.stdout), "stderr": "".join(done.logs.stderr)}
    return {**printed, "error": error, "results": done.results}


def _result_of_command(done: Any) -> dict[str, Any]:
    error = f"exit status {done.exit_code}" if done.exit_code else None
    return {"stdout": done.stdout, "stderr": done.stderr, "error": error, "results": []}


def _metadata(begun: float, measured: Any) -> dict[str, Any]:
    used = measured[-1].mem_used / (1024 * 1024) if measured else None
    return {"execution_time_ms": (time.monotonic() - begun) * 1000, "memory_usage_mb": used}


def _done(result: dict[str, Any], metadata: dict[str, Any], sandbox_id: str) -> ExecutionResult:
    return ExecutionResult("error" if result["error"] else "success", **result, metadata=metadata, sandbox_id=sandbox_id)


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
