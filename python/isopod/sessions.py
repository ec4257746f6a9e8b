"""A run: one sandbox for all tool calls of an agent, created by the first call and removed by ``cleanup``.

    with isopod.session("run-7") as run:
        run.execute("x = 41")
        print(run.execute("x + 1").text)  # 42

``asession`` is the same for asynchronous code. The server keeps the sandbox, pauses it when nobody calls, and brings it
back with its memory; see docs/runs.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

from ._http import Client, Request, Steps, ask, path_of, segment
from .errors import IsopodError
from .tools import Definition, Format, run_definitions, shaped

__all__ = ["AsyncSession", "Execution", "Session", "asession", "session"]

#: The server's own limit for code, and what a request may take beyond it.
_DEFAULT_SECONDS = 300.0
_MARGIN = 120.0
#: More than the server takes to save or restore memory.
_MEMORY_SECONDS = 180.0

FileContents = Union[str, bytes]


@dataclass(frozen=True)
class Execution:
    """What a call in a run's sandbox gave. Code that fails is a result, not an exception."""

    success: bool
    #: The text for an agent: what was printed, and which files were saved. On failure, what was printed before.
    result: str
    #: ``RUNTIME ERROR: name: value`` with the traceback, or None.
    error: Optional[str]
    stdout: str
    stderr: str
    #: The formats of each result: ``text``, ``png``, ``html``, …
    results: list[dict[str, Any]]
    exit_code: Optional[int]
    files_generated: list[str]
    sandbox_id: str
    #: Whether the sandbox is another one than before; its variables are lost.
    restarted: bool
    #: Counts of files that were uploaded, unchanged, downloaded and skipped.
    sync: dict[str, Any]
    #: The whole reply.
    raw: dict[str, Any] = field(repr=False)

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression, as in a notebook."""
        main = [result for result in self.results if result.get("is_main_result")]
        return main[0].get("text") if main else None


class _Session:
    def __init__(self, run_id: str, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> None:
        self.run_id = run_id
        self._client = Client.resolve(api_key, api_url)
        self._base = f"/runtime/{segment(run_id)}"

    def _execute(self, body: dict[str, Any], files: Optional[Mapping[str, FileContents]]) -> Steps[Execution]:
        given = {name: value for name, value in body.items() if value is not None}
        if files:
            given["files"] = [_file(path, content) for path, content in files.items()]
        seconds = float(given.get("timeout", _DEFAULT_SECONDS)) + _MARGIN
        reply = yield from ask(Request("POST", f"{self._base}/execute", json=given, timeout=seconds))
        return _execution(reply)

    def _call(self, name: str, arguments: Union[str, Mapping[str, Any]], agent_id: Optional[str]) -> Steps[str]:
        try:
            given = dict(json.loads(arguments or "{}") if isinstance(arguments, str) else arguments)
            seconds = float(given.get("timeout", _DEFAULT_SECONDS)) + _MARGIN
            params = {"agent_id": agent_id} if agent_id else {}
            path = f"{self._base}/tools/{segment(name)}"
            reply = yield from ask(Request("POST", path, json=given, params=params, timeout=seconds))
        except (IsopodError, TypeError, ValueError) as error:
            # The model reads this, and can correct itself.
            reply = {"success": False, "error": getattr(error, "message", str(error))}
        return json.dumps(reply)

    def _sandbox_id(self) -> Steps[Optional[str]]:
        reply = yield Request("GET", f"{self._base}/session", accept=(404,))
        return None if reply.status_code == 404 else reply.json()["sandbox_id"]

    def _ensure(self) -> Steps[str]:
        """The id of the run's sandbox. The server creates it if there is none, for all callers the same one."""
        made = yield from self._execute({"command": "true"}, None)
        return made.sandbox_id

    def _write(self, path: str, content: FileContents) -> Steps[None]:
        data = content.encode() if isinstance(content, str) else content
        yield Request("PUT", self._file(path), content=data, timeout=600.0)

    def _read(self, path: str) -> Steps[bytes]:
        reply = yield Request("GET", self._file(path), timeout=600.0)
        return reply.content

    def _delete(self, path: str) -> Steps[bool]:
        reply = yield Request("DELETE", self._file(path), accept=(404,))
        return reply.status_code != 404

    def _files(self) -> Steps[list[dict[str, Any]]]:
        return list((yield from ask(Request("GET", f"{self._base}/files")))["files"])

    def _artifacts(self) -> Steps[list[dict[str, Any]]]:
        reply = yield Request("GET", f"{self._base}/artifacts", accept=(404,))
        return [] if reply.status_code == 404 else list(reply.json()["artifacts"])

    def _undo(self, verb: str, name: Optional[str]) -> Steps[None]:
        body = {} if name is None else {"name": name}
        yield Request("POST", f"{self._base}/{verb}", json=body, timeout=_MEMORY_SECONDS)

    def _cleanup(self) -> Steps[bool]:
        cleaned = yield from ask(Request("DELETE", f"{self._base}/cleanup"))
        return bool(cleaned["killed"])

    def _definitions(self, format: Format) -> Steps[list[Definition]]:
        return [shaped(tool, format) for tool in (yield from run_definitions())]

    def _file(self, path: str) -> str:
        return f"{self._base}/files/{path_of(path)}"


class Session(_Session):
    """A run with blocking calls. The end of a ``with`` block removes its sandbox; its files stay."""

    def execute(
        self,
        code: str,
        *,
        language: Optional[str] = None,
        files: Optional[Mapping[str, FileContents]] = None,
        timeout: Optional[float] = None,
        agent_id: Optional[str] = None,
    ) -> Execution:
        """Runs code. Variables, packages and files stay for the next call, from whichever agent it comes."""
        body = {"code": code, "language": language, "timeout": timeout, "agent_id": agent_id}
        return self._client.run(self._execute(body, files))

    def run_command(
        self,
        command: str,
        *,
        files: Optional[Mapping[str, FileContents]] = None,
        timeout: Optional[float] = None,
        agent_id: Optional[str] = None,
    ) -> Execution:
        """Runs a line for the shell."""
        return self._client.run(self._execute({"command": command, "timeout": timeout, "agent_id": agent_id}, files))

    def call(self, name: str, arguments: Union[str, Mapping[str, Any]], *, agent_id: Optional[str] = None) -> str:
        """Calls a tool with a model's arguments. Returns JSON for the model, also if the call was wrong."""
        return self._client.run(self._call(name, arguments, agent_id))

    def tools(self, format: Format = "openai") -> list[Definition]:
        """The definitions of the tools that ``call`` takes."""
        return self._client.run(self._definitions(format))

    def sandbox_id(self) -> Optional[str]:
        """The run's sandbox, or None if it has none."""
        return self._client.run(self._sandbox_id())

    def sandbox(self) -> Any:
        """The run's sandbox as ``e2b_code_interpreter.Sandbox``; created if there is none."""
        from e2b_code_interpreter import Sandbox

        return Sandbox.connect(self._client.run(self._ensure()), timeout=600, **self._client.settings.sdk())

    def write_file(self, path: str, content: FileContents) -> None:
        """Puts a file into the run's input. The next call finds it in its home directory."""
        self._client.run(self._write(path, content))

    def read_file(self, path: str) -> bytes:
        """Reads a file of the run: what calls created, then its input."""
        return self._client.run(self._read(path))

    def delete_file(self, path: str) -> bool:
        """Removes a file from the input. False if there was none."""
        return self._client.run(self._delete(path))

    def files(self) -> list[dict[str, Any]]:
        """All files of the run, with ``filename``, ``size_bytes``, ``content_type`` and ``origin``."""
        return self._client.run(self._files())

    def artifacts(self) -> list[dict[str, Any]]:
        """What calls created, with the agent and the time."""
        return self._client.run(self._artifacts())

    def checkpoint(self, name: Optional[str] = None) -> None:
        """Keeps what the sandbox has and does: files, packages, variables, processes. ``rollback`` goes back to it.

        A later checkpoint with the same name takes its place. Needs a server that can save memory; see docs/snapshots.md.
        """
        self._client.run(self._undo("checkpoint", name))

    def rollback(self, name: Optional[str] = None) -> None:
        """Undoes what was done in the sandbox since the checkpoint. Files that calls created before stay in the run."""
        self._client.run(self._undo("rollback", name))

    def cleanup(self) -> bool:
        """Removes the sandbox. False if there was none. Files stay."""
        return self._client.run(self._cleanup())

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


class AsyncSession(_Session):
    """A run with awaited calls. See ``Session``."""

    async def execute(
        self,
        code: str,
        *,
        language: Optional[str] = None,
        files: Optional[Mapping[str, FileContents]] = None,
        timeout: Optional[float] = None,
        agent_id: Optional[str] = None,
    ) -> Execution:
        body = {"code": code, "language": language, "timeout": timeout, "agent_id": agent_id}
        return await self._client.arun(self._execute(body, files))

    async def run_command(
        self,
        command: str,
        *,
        files: Optional[Mapping[str, FileContents]] = None,
        timeout: Optional[float] = None,
        agent_id: Optional[str] = None,
    ) -> Execution:
        body = {"command": command, "timeout": timeout, "agent_id": agent_id}
        return await self._client.arun(self._execute(body, files))

    async def call(self, name: str, arguments: Union[str, Mapping[str, Any]], *, agent_id: Optional[str] = None) -> str:
        return await self._client.arun(self._call(name, arguments, agent_id))

    async def tools(self, format: Format = "openai") -> list[Definition]:
        return await self._client.arun(self._definitions(format))

    async def sandbox_id(self) -> Optional[str]:
        return await self._client.arun(self._sandbox_id())

    async def sandbox(self) -> Any:
        """The run's sandbox as ``e2b_code_interpreter.AsyncSandbox``; created if there is none."""
        from e2b_code_interpreter import AsyncSandbox

        made = await self._client.arun(self._ensure())
        return await AsyncSandbox.connect(made, timeout=600, **self._client.settings.sdk())

    async def write_file(self, path: str, content: FileContents) -> None:
        await self._client.arun(self._write(path, content))

    async def read_file(self, path: str) -> bytes:
        return await self._client.arun(self._read(path))

    async def delete_file(self, path: str) -> bool:
        return await self._client.arun(self._delete(path))

    async def files(self) -> list[dict[str, Any]]:
        return await self._client.arun(self._files())

    async def artifacts(self) -> list[dict[str, Any]]:
        return await self._client.arun(self._artifacts())

    async def checkpoint(self, name: Optional[str] = None) -> None:
        await self._client.arun(self._undo("checkpoint", name))

    async def rollback(self, name: Optional[str] = None) -> None:
        await self._client.arun(self._undo("rollback", name))

    async def cleanup(self) -> bool:
        return await self._client.arun(self._cleanup())

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()


def session(run_id: str, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> Session:
    """The run with this id, for blocking calls. Nothing happens before the first call."""
    return Session(run_id, api_key=api_key, api_url=api_url)


def asession(run_id: str, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> AsyncSession:
    """The run with this id, for awaited calls."""
    return AsyncSession(run_id, api_key=api_key, api_url=api_url)


def _file(path: str, content: FileContents) -> dict[str, str]:
    if isinstance(content, str):
        return {"path": path, "content": content}
    from base64 import b64encode

    return {"path": path, "content": b64encode(content).decode(), "encoding": "base64"}


def _execution(reply: dict[str, Any]) -> Execution:
    output = reply["output"]
    return Execution(
        success=reply["success"],
        result=reply.get("result") or reply.get("logs") or "",
        error=reply.get("error"),
        stdout=output["stdout"],
        stderr=output["stderr"],
        results=output["results"],
        exit_code=output.get("exit_code"),
        files_generated=reply["files_generated"],
        sandbox_id=reply["sandbox_id"],
        restarted=reply["restarted"],
        sync=reply["sync"],
        raw=reply,
    )
