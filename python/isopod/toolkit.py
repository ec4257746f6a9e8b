"""Twelve tools for an agent, all in one sandbox for each execution.

    toolkit = E2BToolkit(execution_id="run-7")
    print(toolkit.run_python_code("print(6 * 7)"))  # a JSON text with success, stdout, error, sandbox_id, ok …

``E2BToolkit`` makes blocking calls, and its results can also be awaited, because both kinds of callers exist.
``AsyncE2BToolkit`` never blocks the event loop. The server keeps the sandbox: it checks its health before every call,
replaces it if it is ``max_lifetime_hours`` old, however much of ``timeout`` is left, and ends it ``timeout`` seconds after
the last call, even if this program is gone by then.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Generator, Iterable, Mapping, Optional, Union
from uuid import uuid4

from ._files.keys import check_execution_id
from ._http import Client, Request, Steps, ask, segment
from .errors import ConfigurationError, IsopodError
from .storage import FileStorage, SyncFileStorage, current_execution
from .tools import Definition, Format, shaped, toolkit_definitions

__all__ = ["AsyncE2BToolkit", "E2BToolkit", "LastSandbox", "TOOLS", "ToolResult"]

TOOLS = (
    "run_python_code",
    "run_command",
    "get_sandbox_status",
    "restart_sandbox",
    "upload_file",
    "download_file",
    "list_files",
    "read_file_content",
    "write_file_content",
    "create_directory",
    "install_package",
    "get_sandbox_url",
)
DEFAULT_TIMEOUT = 300
DEFAULT_MAX_LIFETIME_HOURS = 23.5
#: Beyond the time that code or a package may take: the server answers before that.
_MARGIN = 120.0


class ToolResult(str):
    """The JSON text of a result. ``await`` on it returns it, so that code written for either kind of call works."""

    def __await__(self) -> Generator[Any, None, "ToolResult"]:
        return self
        yield

    @property
    def data(self) -> dict[str, Any]:
        """The result as a dictionary."""
        return dict(json.loads(self))


@dataclass(frozen=True)
class LastSandbox:
    """The sandbox of a toolkit's last call. Another caller of the execution may have replaced it since."""

    sandbox_id: str


class _Toolkit:
    """Configuration, and what to ask the server."""

    def __init__(
        self,
        enabled: bool = True,
        include_tools: Optional[Iterable[str]] = None,
        exclude_tools: Optional[Iterable[str]] = None,
        file_storage: Union[FileStorage, SyncFileStorage, None] = None,
        *,
        execution_id: Optional[str] = None,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
        timeout: int = DEFAULT_TIMEOUT,
        max_lifetime_hours: float = DEFAULT_MAX_LIFETIME_HOURS,
        template: Optional[str] = None,
        auto_reinitialize: bool = True,
    ) -> None:
        self.enabled = enabled
        self.include_tools = _known(include_tools)
        self.exclude_tools = _known(exclude_tools)
        self.timeout = timeout
        self.max_lifetime_hours = max_lifetime_hours
        #: The template from the configuration, then from ``E2B_TEMPLATE_ID``, then None: the server's own.
        self.template = template or os.environ.get("E2B_TEMPLATE_ID") or None
        self.auto_reinitialize = auto_reinitialize
        self._check()
        self._client = Client.resolve(api_key, api_url)
        self.execution_id = _execution(execution_id, file_storage)
        self._base = f"/api/v1/executions/{segment(self.execution_id)}/toolkit"
        self._is_configured = False
        self._last: Optional[LastSandbox] = None

    @property
    def _sandbox(self) -> Optional[LastSandbox]:
        """ROMA's name for the sandbox. None before the first call that needs one, and after the toolkit was closed."""
        return self._last

    def get_available_tool_names(self) -> set[str]:
        """The names of all tools, also of those that are not enabled."""
        return set(TOOLS)

    def get_tool_metadata(self, tool_name: str) -> Optional[dict[str, Any]]:
        """The name and description of a tool, and whether it has to be awaited. None if there is no such tool."""
        if tool_name not in TOOLS:
            return None
        return {
            "name": tool_name,
            # Both classes have the same tools, and only the first describes them.
            "description": inspect.getdoc(getattr(E2BToolkit, tool_name)) or "",
            "async_supported": inspect.iscoroutinefunction(getattr(self, tool_name)),
        }

    def _definitions(self, format: Format) -> Steps[list[Definition]]:
        listed = yield from toolkit_definitions()
        return [shaped(tool, format) for tool in listed if tool["name"] in self._enabled_names()]

    def _check(self) -> None:
        if self.timeout <= 0:
            raise ConfigurationError(f"timeout must be positive, got {self.timeout}")
        if not 0 < self.max_lifetime_hours <= 24:
            raise ConfigurationError(
                f"max_lifetime_hours must be more than 0 and at most 24, got {self.max_lifetime_hours}"
            )

    def _enabled_names(self) -> list[str]:
        if not self.enabled:
            return []
        wanted = self.include_tools or TOOLS
        return [name for name in TOOLS if name in wanted and name not in self.exclude_tools]

    def _call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> Steps[ToolResult]:
        """Calls a tool. What goes wrong is in the result, where an agent can read it."""
        if tool not in self._enabled_names():
            return _failed(f"the tool {tool} is not enabled")
        try:
            yield from self._configure()
            path = f"{self._base}/{tool}"
            result = yield from ask(Request("POST", path, json=dict(arguments), timeout=seconds + _MARGIN))
        except IsopodError as error:
            return _failed(f"{tool} failed: {error}")
        self._remember(result)
        return ToolResult(json.dumps(result))

    def _start(self) -> Steps[dict[str, Any]]:
        """Makes sure that there is a sandbox. Returns its id, and whether it is another one than before."""
        yield from self._configure()
        started = dict((yield from ask(Request("POST", self._base))))
        self._remember(started)
        return started

    def _end(self) -> Steps[bool]:
        # Nobody knows an execution that was never used.
        reply = yield Request("DELETE", self._base, accept=(404,))
        self._last = None
        return reply.status_code != 404 and bool(reply.json()["killed"])

    def _remember(self, result: Mapping[str, Any]) -> None:
        used = result.get("new_sandbox_id") or result.get("sandbox_id")
        if result.get("status") == "stopped":
            self._last = None
        elif used:
            self._last = LastSandbox(str(used))

    def _configure(self) -> Steps[None]:
        if self._is_configured:
            return
        body: dict[str, Any] = {
            "timeout": self.timeout,
            "max_lifetime_hours": self.max_lifetime_hours,
            "auto_reinitialize": self.auto_reinitialize,
            "include_tools": list(self.include_tools),
            "exclude_tools": list(self.exclude_tools),
        }
        if self.template is not None:
            body["template"] = self.template
        yield Request("PUT", self._base, json=body)
        self._is_configured = True

    def _code(self, code: str) -> Steps[ToolResult]:
        return self._call("run_python_code", {"code": code}, self.timeout)

    def _command(self, command: str, timeout_seconds: float) -> Steps[ToolResult]:
        arguments = {"command": command, "timeout_seconds": timeout_seconds}
        return self._call("run_command", arguments, timeout_seconds)

    def _sdk(self) -> dict[str, Any]:
        return self._client.settings.sdk() | {"timeout": self.timeout}


class E2BToolkit(_Toolkit):
    """The tools with blocking calls. In asynchronous code, ``await`` on a result works but blocks the event loop."""

    def run_python_code(self, code: str) -> ToolResult:
        """Runs Python code. Variables stay for the next call. ``ok`` says whether the code worked."""
        return self._client.run(self._code(code))

    def run_command(self, command: str, timeout_seconds: float = 60) -> ToolResult:
        """Runs a line for the shell."""
        return self._client.run(self._command(command, timeout_seconds))

    def get_sandbox_status(self) -> ToolResult:
        """Whether there is a sandbox, how old it is, and whether the workspace is healthy."""
        return self._simple("get_sandbox_status")

    def restart_sandbox(self) -> ToolResult:
        """Replaces the sandbox with a fresh one. The workspace stays."""
        return self._simple("restart_sandbox")

    def upload_file(self, local_path: str, remote_path: str) -> ToolResult:
        """Copies a file of this machine into the sandbox."""
        if "upload_file" not in self._enabled_names():
            return _failed("the tool upload_file is not enabled")
        try:
            from e2b import Sandbox

            data = Path(local_path).read_bytes()
            started = self._client.run(self._start())
            Sandbox.connect(started["sandbox_id"], **self._sdk()).files.write(remote_path, data)
        except Exception as error:
            return _failed(f"upload_file failed: {error}")
        return _transferred("Uploaded", len(data), local_path, remote_path, started)

    def download_file(self, remote_path: str, local_path: str) -> ToolResult:
        """Copies a file of the sandbox to this machine, byte for byte."""
        if "download_file" not in self._enabled_names():
            return _failed("the tool download_file is not enabled")
        try:
            from e2b import Sandbox

            started = self._client.run(self._start())
            data = bytes(Sandbox.connect(started["sandbox_id"], **self._sdk()).files.read(remote_path, format="bytes"))
            _save(local_path, data)
        except Exception as error:
            return _failed(f"download_file failed: {error}")
        return _transferred("Downloaded", len(data), local_path, remote_path, started)

    def list_files(self, directory: str = "/home/user") -> ToolResult:
        """Lists a directory of the sandbox as ``ls -la`` does."""
        return self._simple("list_files", directory=directory)

    def read_file_content(self, path: str) -> ToolResult:
        """Reads a file of the sandbox. Binary contents are in ``content_base64``."""
        return self._simple("read_file_content", path=path)

    def write_file_content(self, path: str, content: str) -> ToolResult:
        """Writes a text file in the sandbox. Creates its parent directories."""
        return self._simple("write_file_content", path=path, content=content)

    def create_directory(self, path: str) -> ToolResult:
        """Creates a directory in the sandbox, and its parents."""
        return self._simple("create_directory", path=path)

    def install_package(self, package: str) -> ToolResult:
        """Installs a Python package with pip."""
        return self._simple("install_package", package=package)

    def get_sandbox_url(self, port: int = 8000) -> ToolResult:
        """The host name under which a port of the sandbox is reachable."""
        return self._simple("get_sandbox_url", port=port)

    def call(self, name: str, arguments: Union[str, Mapping[str, Any]]) -> ToolResult:
        """Calls a tool by its name with a model's arguments, as JSON or as a dictionary."""
        result: ToolResult = _dispatched(self.get_enabled_tools(), name, arguments)
        return result

    def definitions(self, format: Format = "openai") -> list[Definition]:
        """The enabled tools for function calling. See ``isopod.tools``."""
        return self._client.run(self._definitions(format))

    def get_enabled_tools(self) -> dict[str, Callable[..., ToolResult]]:
        """The enabled tools by name."""
        return {name: getattr(self, name) for name in self._enabled_names()}

    def close(self) -> bool:
        """Ends the sandbox. False if there was none."""
        return self._client.run(self._end())

    async def aclose(self) -> bool:
        return await self._client.arun(self._end())

    def _simple(self, tool: str, **arguments: Any) -> ToolResult:
        return self._client.run(self._call(tool, arguments, self.timeout))

    def __enter__(self) -> "E2BToolkit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "E2BToolkit":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncE2BToolkit(_Toolkit):
    """The tools with awaited calls. See ``E2BToolkit``."""

    async def run_python_code(self, code: str) -> ToolResult:
        return await self._client.arun(self._code(code))

    async def run_command(self, command: str, timeout_seconds: float = 60) -> ToolResult:
        return await self._client.arun(self._command(command, timeout_seconds))

    async def get_sandbox_status(self) -> ToolResult:
        return await self._simple("get_sandbox_status")

    async def restart_sandbox(self) -> ToolResult:
        return await self._simple("restart_sandbox")

    async def upload_file(self, local_path: str, remote_path: str) -> ToolResult:
        if "upload_file" not in self._enabled_names():
            return _failed("the tool upload_file is not enabled")
        try:
            from e2b import AsyncSandbox

            data = await asyncio.to_thread(Path(local_path).read_bytes)
            started = await self._client.arun(self._start())
            sandbox = await AsyncSandbox.connect(started["sandbox_id"], **self._sdk())
            await sandbox.files.write(remote_path, data)
        except Exception as error:
            return _failed(f"upload_file failed: {error}")
        return _transferred("Uploaded", len(data), local_path, remote_path, started)

    async def download_file(self, remote_path: str, local_path: str) -> ToolResult:
        if "download_file" not in self._enabled_names():
            return _failed("the tool download_file is not enabled")
        try:
            from e2b import AsyncSandbox

            started = await self._client.arun(self._start())
            sandbox = await AsyncSandbox.connect(started["sandbox_id"], **self._sdk())
            data = bytes(await sandbox.files.read(remote_path, format="bytes"))
            await asyncio.to_thread(_save, local_path, data)
        except Exception as error:
            return _failed(f"download_file failed: {error}")
        return _transferred("Downloaded", len(data), local_path, remote_path, started)

    async def list_files(self, directory: str = "/home/user") -> ToolResult:
        return await self._simple("list_files", directory=directory)

    async def read_file_content(self, path: str) -> ToolResult:
        return await self._simple("read_file_content", path=path)

    async def write_file_content(self, path: str, content: str) -> ToolResult:
        return await self._simple("write_file_content", path=path, content=content)

    async def create_directory(self, path: str) -> ToolResult:
        return await self._simple("create_directory", path=path)

    async def install_package(self, package: str) -> ToolResult:
        return await self._simple("install_package", package=package)

    async def get_sandbox_url(self, port: int = 8000) -> ToolResult:
        return await self._simple("get_sandbox_url", port=port)

    async def call(self, name: str, arguments: Union[str, Mapping[str, Any]]) -> ToolResult:
        """Calls a tool by its name with a model's arguments, as JSON or as a dictionary."""
        result: ToolResult = await _dispatched(self.get_enabled_tools(), name, arguments)
        return result

    async def definitions(self, format: Format = "openai") -> list[Definition]:
        """The enabled tools for function calling. See ``isopod.tools``."""
        return await self._client.arun(self._definitions(format))

    def get_enabled_tools(self) -> dict[str, Callable[..., Any]]:
        """The enabled tools by name."""
        return {name: getattr(self, name) for name in self._enabled_names()}

    async def aclose(self) -> bool:
        """Ends the sandbox. False if there was none."""
        return await self._client.arun(self._end())

    async def _simple(self, tool: str, **arguments: Any) -> ToolResult:
        return await self._client.arun(self._call(tool, arguments, self.timeout))

    async def __aenter__(self) -> "AsyncE2BToolkit":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _execution(execution_id: Optional[str], storage: Union[FileStorage, SyncFileStorage, None]) -> str:
    """The execution whose files the sandbox sees: the given one, the storage's, the one opened last, or a new one."""
    chosen = execution_id or (storage.execution_id if storage else current_execution.get())
    return check_execution_id(chosen or f"toolkit-{uuid4().hex}")


def _known(tools: Optional[Iterable[str]]) -> tuple[str, ...]:
    names = tuple(tools or ())
    unknown = sorted(set(names) - set(TOOLS))
    if unknown:
        raise ConfigurationError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    return names


def _dispatched(tools: Mapping[str, Callable[..., Any]], name: str, arguments: Union[str, Mapping[str, Any]]) -> Any:
    if name not in tools:
        return _failed(f"Unknown tool: {name}")
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        bound = inspect.signature(tools[name]).bind(**given)
    except (TypeError, ValueError) as error:
        return _failed(f"wrong arguments of {name}: {error}")
    return tools[name](*bound.args, **bound.kwargs)


def _failed(error: str) -> ToolResult:
    return ToolResult(json.dumps({"success": False, "ok": False, "error": error}))


def _transferred(verb: str, size: int, local: str, remote: str, started: Mapping[str, Any]) -> ToolResult:
    result = {
        "success": True,
        "ok": True,
        "message": f"{verb} {size} bytes",
        "local_path": local,
        "remote_path": remote,
        "size_bytes": size,
        **{name: value for name, value in started.items() if value is not None},
    }
    return ToolResult(json.dumps(result))


def _save(path: str, data: bytes) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
