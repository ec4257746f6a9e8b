"""What the sandbox service returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional


@dataclass(frozen=True)
class SandboxStatus:
    """Whether a sandbox runs."""

    #: ``creating``, ``running``, ``paused``, ``stopped`` or ``error``.
    status: str
    #: Why it ended: ``destroyed``, ``timeout``, ``task_completed``, ``stale``, ``out_of_memory``, ``lost``, …
    reason: Optional[str] = None
    created_at: Optional[str] = None
    destroyed_at: Optional[str] = None

    @property
    def is_running(self) -> bool:
        return self.status == "running"


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as the service records it."""

    #: The service's own id. All methods also take ``sandbox_id``.
    id: str
    #: The id that E2B's SDKs connect to; None while it is being created.
    sandbox_id: Optional[str]
    agent_id: Optional[str]
    task_id: Optional[str]
    template: str
    state: SandboxStatus
    timeout: int
    metadata: Mapping[str, str]
    repo_url: Optional[str] = None
    branch_name: Optional[str] = None
    #: The whole record.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def status(self) -> str:
        return self.state.status

    @staticmethod
    def parse(record: Mapping[str, Any]) -> "Sandbox":
        state = SandboxStatus(
            record["status"], record.get("reason"), record.get("created_at"), record.get("destroyed_at")
        )
        return Sandbox(
            id=record["id"],
            sandbox_id=record.get("sandbox_id"),
            agent_id=record.get("agent_id"),
            task_id=record.get("task_id"),
            template=record["template"],
            state=state,
            timeout=record["timeout"],
            metadata=record["metadata"],
            repo_url=record.get("repo_url"),
            branch_name=record.get("branch_name"),
            raw=record,
        )


@dataclass(frozen=True)
class ExecutionResult:
    """A command that ended."""

    #: The id of its record in ``/api/v1/commands``.
    id: str
    sandbox_id: str
    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool
    #: Whether a stream had more than 4 MiB.
    truncated: bool
    duration_ms: int
    status: str

    @property
    def success(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True)
class GitResult:
    """What a git operation gave."""

    data: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.data[name]
