"""Agent Squad's sandbox service: ``app.services.e2b_service`` with the names of its plan."""

from __future__ import annotations

from ..errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    InvalidKeyError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    ReplyTimeoutError,
    TimedOutError,
    UnreachableError,
)
from ..errors import IsopodError as SandboxServiceError
from ..service import E2BSandboxService, ExecutionResult, Sandbox, SandboxStatus

__all__ = [
    "BackendTimeoutError",
    "BackendUnavailableError",
    "E2BSandboxService",
    "ExecutionResult",
    "InvalidKeyError",
    "NotFoundError",
    "PermissionDeniedError",
    "QuotaExceededError",
    "ReplyTimeoutError",
    "Sandbox",
    "SandboxServiceError",
    "SandboxStatus",
    "TimedOutError",
    "UnreachableError",
    "create_sandbox_with_retry",
]


async def create_sandbox_with_retry(agent_id: str, task_id: str) -> Sandbox:
    """Creates a sandbox; transient failures are tried three times with growing pauses."""
    return await E2BSandboxService().create_sandbox(agent_id, task_id)
