"""Sandboxes for a team's agents: created for an agent and a task, recorded, audited, and removed.

    service = E2BSandboxService()
    sandbox = await service.create_sandbox("ada", "fix-42")
    result = await service.execute_command(sandbox.id, "git --version")
    await service.destroy_sandbox(sandbox.id)

``SandboxService`` has the same methods with blocking calls. The server does the work: quotas, ownership, health checks,
the circuit breaker, the audit log and the removal of stale sandboxes; see docs/service.md. Errors are exceptions of
``isopod.errors``.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Mapping, Optional, TypeVar, Union
from uuid import uuid4

from ._http import Client, Steps
from ._service import git, operations
from ._service.records import ExecutionResult, GitResult, Sandbox, SandboxStatus
from .errors import IsopodError, QuotaExceededError, TransientError

__all__ = ["E2BSandboxService", "ExecutionResult", "GitResult", "Sandbox", "SandboxService", "SandboxStatus"]

T = TypeVar("T")
_ATTEMPTS = 3
_SHORTEST, _LONGEST = 1.0, 10.0


class _Service:
    def __init__(self, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> None:
        self._client = Client.resolve(api_key, api_url)


class E2BSandboxService(_Service):
    """The sandbox service with awaited calls."""

    async def create_sandbox(
        self,
        agent_id: Optional[str] = None,
        task_id: Optional[str] = None,
        *,
        template: Optional[str] = None,
        timeout: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        metadata: Optional[Mapping[str, str]] = None,
        limits: Optional[Mapping[str, int]] = None,
    ) -> Sandbox:
        """Creates a sandbox. Tries transient failures three times; all tries together create at most one."""
        make = operations.create(agent_id, task_id, template, timeout, env, metadata, limits, uuid4().hex)
        return await self._retried(make)

    #: The same: creating is always retried.
    create_sandbox_with_retry = create_sandbox

    async def execute_command(
        self,
        sandbox_id: str,
        command: Union[str, list[str]],
        *,
        timeout: Optional[int] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
    ) -> ExecutionResult:
        """Runs a line for the shell, or a list of arguments without one. A failed command is a result."""
        return await self._client.arun(operations.execute(sandbox_id, command, timeout, cwd, env, user, stdin))

    async def upload_file(self, sandbox_id: str, local_path: str, remote_path: str) -> int:
        """Copies a file into the sandbox. Returns its size."""
        data = await asyncio.to_thread(Path(local_path).read_bytes)
        return await self._client.arun(operations.write(sandbox_id, remote_path, data))

    async def download_file(self, sandbox_id: str, remote_path: str, local_path: str) -> int:
        """Copies a file of the sandbox to this machine. Returns its size."""
        data = await self._client.arun(operations.read(sandbox_id, remote_path))
        return await asyncio.to_thread(Path(local_path).write_bytes, data)

    async def get_status(self, sandbox_id: str) -> SandboxStatus:
        """The state of the sandbox now."""
        return (await self.get_sandbox(sandbox_id)).state

    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        return await self._client.arun(operations.get(sandbox_id))

    async def list_sandboxes(
        self, *, agent_id: Optional[str] = None, task_id: Optional[str] = None, include_ended: bool = False
    ) -> list[Sandbox]:
        return await self._client.arun(operations.find(agent_id, task_id, include_ended))

    async def pause_sandbox(self, sandbox_id: str) -> Sandbox:
        return await self._client.arun(operations.act(sandbox_id, "pause"))

    async def resume_sandbox(self, sandbox_id: str) -> Sandbox:
        return await self._client.arun(operations.act(sandbox_id, "resume"))

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        """Ends the sandbox. No error if it is gone already."""
        await self._client.arun(operations.destroy(sandbox_id))

    async def cleanup_stale_sandboxes(self, older_than_hours: float = 24) -> int:
        """Ends this team's sandboxes of that age, as the server does every hour. Returns how many."""
        return await self._client.arun(operations.cleanup(older_than_hours))

    async def git_clone(
        self, sandbox_id: str, repo_url: str, *, branch: Optional[str] = None, token: Optional[str] = None
    ) -> GitResult:
        """Clones into ``/workspace/repo``. The token is in no log and not in the sandbox afterwards."""
        return await self._client.arun(git.clone(sandbox_id, repo_url, branch, token))

    async def git_branch(self, sandbox_id: str, name: Optional[str] = None) -> GitResult:
        return await self._client.arun(git.branch(sandbox_id, name))

    async def git_commit(self, sandbox_id: str, message: str, paths: Optional[list[str]] = None) -> GitResult:
        """Commits with a conventional message, such as ``feat: …``."""
        return await self._client.arun(git.commit(sandbox_id, message, paths))

    async def git_push(self, sandbox_id: str, token: Optional[str] = None) -> GitResult:
        return await self._client.arun(git.push(sandbox_id, token))

    async def git_history(self, sandbox_id: str) -> GitResult:
        return await self._client.arun(git.history(sandbox_id))

    async def _retried(self, make: Callable[[], Steps[T]], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._client.arun(make())
            except IsopodError as error:
                await sleep(_pause(attempt, error))
        raise AssertionError("the last attempt returns or raises")


class SandboxService(_Service):
    """The sandbox service with blocking calls. See ``E2BSandboxService``."""

    def create_sandbox(
        self,
        agent_id: Optional[str] = None,
        task_id: Optional[str] = None,
        *,
        template: Optional[str] = None,
        timeout: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        metadata: Optional[Mapping[str, str]] = None,
        limits: Optional[Mapping[str, int]] = None,
    ) -> Sandbox:
        make = operations.create(agent_id, task_id, template, timeout, env, metadata, limits, uuid4().hex)
        return self._retried(make)

    def execute_command(
        self,
        sandbox_id: str,
        command: Union[str, list[str]],
        *,
        timeout: Optional[int] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
    ) -> ExecutionResult:
        return self._client.run(operations.execute(sandbox_id, command, timeout, cwd, env, user, stdin))

    def upload_file(self, sandbox_id: str, local_path: str, remote_path: str) -> int:
        return self._client.run(operations.write(sandbox_id, remote_path, Path(local_path).read_bytes()))

    def download_file(self, sandbox_id: str, remote_path: str, local_path: str) -> int:
        return Path(local_path).write_bytes(self._client.run(operations.read(sandbox_id, remote_path)))

    def get_status(self, sandbox_id: str) -> SandboxStatus:
        return self.get_sandbox(sandbox_id).state

    def get_sandbox(self, sandbox_id: str) -> Sandbox:
        return self._client.run(operations.get(sandbox_id))

    def list_sandboxes(
        self, *, agent_id: Optional[str] = None, task_id: Optional[str] = None, include_ended: bool = False
    ) -> list[Sandbox]:
        return self._client.run(operations.find(agent_id, task_id, include_ended))

    def pause_sandbox(self, sandbox_id: str) -> Sandbox:
        return self._client.run(operations.act(sandbox_id, "pause"))

    def resume_sandbox(self, sandbox_id: str) -> Sandbox:
        return self._client.run(operations.act(sandbox_id, "resume"))

    def destroy_sandbox(self, sandbox_id: str) -> None:
        self._client.run(operations.destroy(sandbox_id))

    def cleanup_stale_sandboxes(self, older_than_hours: float = 24) -> int:
        return self._client.run(operations.cleanup(older_than_hours))

    def git_clone(
        self, sandbox_id: str, repo_url: str, *, branch: Optional[str] = None, token: Optional[str] = None
    ) -> GitResult:
        return self._client.run(git.clone(sandbox_id, repo_url, branch, token))

    def git_branch(self, sandbox_id: str, name: Optional[str] = None) -> GitResult:
        return self._client.run(git.branch(sandbox_id, name))

    def git_commit(self, sandbox_id: str, message: str, paths: Optional[list[str]] = None) -> GitResult:
        return self._client.run(git.commit(sandbox_id, message, paths))

    def git_push(self, sandbox_id: str, token: Optional[str] = None) -> GitResult:
        return self._client.run(git.push(sandbox_id, token))

    def git_history(self, sandbox_id: str) -> GitResult:
        return self._client.run(git.history(sandbox_id))

    def _retried(self, make: Callable[[], Steps[T]], sleep: Callable[[float], Any] = time.sleep) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._client.run(make())
            except IsopodError as error:
                sleep(_pause(attempt, error))
        raise AssertionError("the last attempt returns or raises")


def _pause(attempt: int, error: IsopodError) -> float:
    """How long to wait before the next attempt. Raises the error if there is none."""
    hint = getattr(error, "retry_after", None)
    may_pass = isinstance(error, TransientError) or (isinstance(error, QuotaExceededError) and hint is not None)
    if attempt >= _ATTEMPTS or not may_pass or (hint or 0) > _LONGEST:
        raise error
    # Some of it is random, so that clients which failed together don't return together.
    return float(hint) if hint else min(_LONGEST, _SHORTEST * 2 ** (attempt - 1) * random.uniform(1, 1.5))
