"""RARO's session manager: one sandbox per run, smart sync of a run's input, and artifacts in its output.

    from isopod.compat.raro import SandboxSession, WorkspaceManager, run_e2b_sandbox

    ws = WorkspaceManager("run-7", "/app/storage")
    print(run_e2b_sandbox("print(open('data.csv').read())", ws))
    SandboxSession.kill_session("run-7")

``AsyncSandboxSession``, ``AsyncE2BSessionManager``, ``arun_e2b_sandbox``, ``aexecute_tool_call`` and
``aget_tool_definitions_for_prompt`` are the same for asynchronous code.

The server keeps the map from runs to sandboxes, so no Redis is needed here, two agents of a run never get two sandboxes,
and a sandbox that could not be removed is tried again. With ``REDIS_URL``, the server publishes the map under the same
keys, ``raro:e2b_session:{run_id}``.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Callable, Iterable, Mapping, Optional

from .._http import Client, Steps
from ..errors import ConfigurationError, IsopodError, QuotaExceededError, TransientError
from ..sessions import AsyncSession, Execution, Session, _Session
from ..tools import run_definitions
from ._workspace import RFS_BASE, WorkspaceManager

__all__ = [
    "AsyncE2BSessionManager",
    "AsyncSandboxSession",
    "E2BSessionManager",
    "RFS_BASE",
    "SandboxSession",
    "WorkspaceManager",
    "aexecute_tool_call",
    "aget_tool_definitions_for_prompt",
    "arun_e2b_sandbox",
    "execute_tool_call",
    "get_tool_definitions_for_prompt",
    "run_e2b_sandbox",
]

Result = dict[str, Any]
_logger = logging.getLogger("isopod.compat.raro")
_NO_SANDBOX = "Failed to create E2B sandbox for run %s: %s"
#: What of a tool's reply an agent is shown. The rest, such as images, is in files.
_SHOWN = ("success", "result", "error", "logs", "files_generated")
#: Tools of the server that run something, and so need the workspace's input.
_RUNNING = ("execute_code", "run_command")


class _Manager:
    def __init__(self, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> None:
        self._options: dict[str, Any] = {"api_key": api_key, "api_url": api_url}


class E2BSessionManager(_Manager):
    """Sessions by run id, on one server."""

    def session(self, run_id: str) -> Session:
        return Session(run_id, **self._options)

    def get_or_create(self, run_id: str) -> Optional[Any]:
        """The run's sandbox as ``e2b_code_interpreter.Sandbox``, or None if there can't be one. The log says why."""
        try:
            return self.session(run_id).sandbox()
        except Exception as error:
            _logger.error(_NO_SANDBOX, run_id, error)
            return None

    def execute(self, code: str, ws: WorkspaceManager, *, agent_id: Optional[str] = None) -> Result:
        """Sends the workspace's input, runs code, and puts what it created into the workspace's output."""
        try:
            session = self.session(ws.run_id)
            return session._client.run(_execution(session, code, ws, agent_id))
        except IsopodError as error:
            return _failure(error)

    def call_tool(
        self, tool_name: str, args: Mapping[str, Any], ws: WorkspaceManager, *, agent_id: Optional[str] = None
    ) -> Result:
        """Makes a model's call of a tool: on the workspace's files, in the run's sandbox, or one that the server has."""
        try:
            if tool_name in _ON_FILES:
                return _ON_FILES[tool_name](ws, args)
            if tool_name == "execute_python":
                return self.execute(args.get("code", ""), ws, agent_id=agent_id)
            session = self.session(ws.run_id)
            return session._client.run(_server_call(session, tool_name, args, ws, agent_id))
        except Exception as error:
            return _tool_failure(error)

    def kill_session(self, run_id: str) -> bool:
        """Removes the run's sandbox. False if there was none."""
        return self.session(run_id).cleanup()

    cleanup = kill_session


class AsyncE2BSessionManager(_Manager):
    """Sessions by run id with awaited calls. See ``E2BSessionManager``."""

    def session(self, run_id: str) -> AsyncSession:
        return AsyncSession(run_id, **self._options)

    async def get_or_create(self, run_id: str) -> Optional[Any]:
        """The run's sandbox as ``e2b_code_interpreter.AsyncSandbox``, or None if there can't be one. The log says why."""
        try:
            return await self.session(run_id).sandbox()
        except Exception as error:
            _logger.error(_NO_SANDBOX, run_id, error)
            return None

    async def execute(self, code: str, ws: WorkspaceManager, *, agent_id: Optional[str] = None) -> Result:
        try:
            session = self.session(ws.run_id)
            return await session._client.arun(_execution(session, code, ws, agent_id))
        except IsopodError as error:
            return _failure(error)

    async def call_tool(
        self, tool_name: str, args: Mapping[str, Any], ws: WorkspaceManager, *, agent_id: Optional[str] = None
    ) -> Result:
        try:
            if tool_name in _ON_FILES:
                return _ON_FILES[tool_name](ws, args)
            if tool_name == "execute_python":
                return await self.execute(args.get("code", ""), ws, agent_id=agent_id)
            session = self.session(ws.run_id)
            return await session._client.arun(_server_call(session, tool_name, args, ws, agent_id))
        except Exception as error:
            return _tool_failure(error)

    async def kill_session(self, run_id: str) -> bool:
        return await self.session(run_id).cleanup()

    cleanup = kill_session


class SandboxSession:
    """The session manager with the settings of the environment."""

    @staticmethod
    def get_redis_key(run_id: str) -> str:
        """Where the server publishes the sandbox's id if it has a Redis."""
        return f"raro:e2b_session:{run_id}"

    @classmethod
    def get_or_create(cls, run_id: str) -> Optional[Any]:
        return E2BSessionManager().get_or_create(run_id)

    @classmethod
    def kill_session(cls, run_id: str) -> bool:
        return E2BSessionManager().kill_session(run_id)


class AsyncSandboxSession:
    """``SandboxSession`` with awaited calls."""

    get_redis_key = staticmethod(SandboxSession.get_redis_key)

    @classmethod
    async def get_or_create(cls, run_id: str) -> Optional[Any]:
        return await AsyncE2BSessionManager().get_or_create(run_id)

    @classmethod
    async def kill_session(cls, run_id: str) -> bool:
        return await AsyncE2BSessionManager().kill_session(run_id)


def run_e2b_sandbox(code: str, ws: WorkspaceManager) -> Result:
    """RARO's ``_run_e2b_sandbox``: ``success`` with ``result`` and ``files_generated``, or ``error`` with ``logs``."""
    return E2BSessionManager().execute(code, ws)


async def arun_e2b_sandbox(code: str, ws: WorkspaceManager) -> Result:
    return await AsyncE2BSessionManager().execute(code, ws)


_run_e2b_sandbox = run_e2b_sandbox


def execute_tool_call(
    tool_name: str, args: Mapping[str, Any], run_id: str = "default_run", *, ws: Optional[WorkspaceManager] = None
) -> Result:
    """A model's call of a tool, in the run's workspace below ``RFS_BASE``. Failures are results, also of unknown tools.

    A caller that passes the same ``ws`` each time has unchanged inputs sent only once.
    """
    try:
        return E2BSessionManager().call_tool(tool_name, args, ws or WorkspaceManager(run_id))
    except OSError as error:
        return _tool_failure(error)


async def aexecute_tool_call(
    tool_name: str, args: Mapping[str, Any], run_id: str = "default_run", *, ws: Optional[WorkspaceManager] = None
) -> Result:
    try:
        return await AsyncE2BSessionManager().call_tool(tool_name, args, ws or WorkspaceManager(run_id))
    except OSError as error:
        return _tool_failure(error)


def get_tool_definitions_for_prompt(tool_names: Iterable[str]) -> str:
    """The definitions of these tools as a JSON text for a system prompt: a list with ``name``, ``description`` and
    ``parameters``. Tools that the server doesn't have are left out."""
    return _for_prompt(Client.resolve().run(run_definitions()), tool_names)


async def aget_tool_definitions_for_prompt(tool_names: Iterable[str]) -> str:
    return _for_prompt(await Client.resolve().arun(run_definitions()), tool_names)


def _for_prompt(listed: list[dict[str, Any]], names: Iterable[str]) -> str:
    known = {tool["name"]: tool for tool in listed}
    return json.dumps([known[name] for name in names if name in known], indent=2)


def _execution(session: _Session, code: str, ws: WorkspaceManager, agent_id: Optional[str]) -> Steps[Result]:
    yield from ws.send(session)
    done = yield from session._execute({"code": code, "agent_id": agent_id}, None)
    return _shaped(done, (yield from ws.fetch(session, done.files_generated)))


def _server_call(
    session: _Session, name: str, args: Mapping[str, Any], ws: WorkspaceManager, agent_id: Optional[str]
) -> Steps[Result]:
    """A tool that only the server has, such as ``run_command`` and ``web_search``. It knows which ones there are."""
    if name in _RUNNING:
        yield from ws.send(session)
    reply = json.loads((yield from session._call(name, args, agent_id)))
    missing = yield from ws.fetch(session, reply.get("files_generated", []))
    shown = {field: reply[field] for field in _SHOWN if reply.get(field) is not None}
    return _without(missing, shown, "result" if reply["success"] else "logs")


def _shaped(done: Execution, missing: Mapping[str, str]) -> Result:
    if done.success:
        return _without(missing, {"success": True, "result": done.result, "files_generated": done.files_generated}, "result")
    failed = {"success": False, "error": done.error, "logs": done.result}
    created = {"files_generated": done.files_generated} if done.files_generated else {}
    return _without(missing, failed | created, "logs")


def _without(missing: Mapping[str, str], result: Result, told: str) -> Result:
    """The agent must learn what it can't find in its output."""
    if not missing:
        return result
    lines = "".join(f"\n[SYSTEM: '{name}' could not be saved: {reason}]" for name, reason in missing.items())
    files = [name for name in result["files_generated"] if name not in missing]
    return result | {told: f"{result.get(told, '')}{lines}", "files_generated": files}


def _read(ws: WorkspaceManager, args: Mapping[str, Any]) -> Result:
    name = args.get("filename", "")
    if ws.find(name) is None:
        return {"success": False, "error": f"File '{name}' not found."}
    return {"success": True, "result": ws.read(name)}


def _write(ws: WorkspaceManager, args: Mapping[str, Any]) -> Result:
    name = args.get("filename", "")
    ws.write(name, args.get("content", ""))
    return {"success": True, "result": f"Successfully saved to {name}", "files_generated": [name]}


def _list(ws: WorkspaceManager, _: Mapping[str, Any]) -> Result:
    return {"success": True, "result": ws.list_contents()}


#: Tools that need no sandbox: the workspace's files are on this machine.
_ON_FILES: Mapping[str, Callable[[WorkspaceManager, Mapping[str, Any]], Result]] = {
    "read_file": _read,
    "write_file": _write,
    "list_files": _list,
}


def _failure(error: IsopodError) -> Result:
    _logger.error("E2B failure: %s", error)
    if isinstance(error, (ConfigurationError, QuotaExceededError, TransientError)):
        return {"success": False, "error": "Failed to initialize E2B Sandbox connection."}
    return {"success": False, "error": f"Sandbox failed: {error}"}


def _tool_failure(error: Exception) -> Result:
    _logger.error("A tool call failed: %s", error)
    return {"success": False, "error": f"Tool execution error: {error}"}
