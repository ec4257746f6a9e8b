"""Requests of the sandbox service, ``/api/v1/sandboxes``."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Mapping, Optional, Union

from .._http import Request, Steps, ask, segment
from .records import ExecutionResult, Sandbox

_BASE = "/api/v1/sandboxes"
#: The server's default for a command, and what a request may take beyond a command's time.
_COMMAND_SECONDS = 300
_MARGIN = 60.0
_TRANSFER = 600.0


def create(
    agent_id: Optional[str],
    task_id: Optional[str],
    template: Optional[str],
    timeout: Optional[int],
    env: Optional[Mapping[str, str]],
    metadata: Optional[Mapping[str, str]],
    limits: Optional[Mapping[str, int]],
    idempotency_key: str,
) -> Callable[[], Steps[Sandbox]]:
    """Each call of the result is another attempt at the same sandbox."""
    body = _given(
        agent_id=agent_id,
        task_id=task_id,
        template=template,
        timeout=timeout,
        env=_dict(env),
        metadata=_dict(metadata),
        limits=_dict(limits),
    )
    headers = {"Idempotency-Key": idempotency_key}

    def attempt() -> Steps[Sandbox]:
        return Sandbox.parse((yield from ask(Request("POST", _BASE, json=body, headers=headers, timeout=300.0))))

    return attempt


def get(sandbox_id: str) -> Steps[Sandbox]:
    return Sandbox.parse((yield from ask(Request("GET", _path(sandbox_id)))))


def find(agent_id: Optional[str], task_id: Optional[str], include_ended: bool) -> Steps[list[Sandbox]]:
    params: dict[str, str] = _given(agent_id=agent_id, task_id=task_id)
    if include_ended:
        params["include_ended"] = "true"
    found: list[Sandbox] = []
    while True:
        page = yield from ask(Request("GET", _BASE, params=params))
        found += [Sandbox.parse(record) for record in page["sandboxes"]]
        if not page.get("next") or page["next"] == params.get("before"):
            return found
        params = {**params, "before": page["next"]}


def act(sandbox_id: str, verb: str) -> Steps[Sandbox]:
    return Sandbox.parse((yield from ask(Request("POST", f"{_path(sandbox_id)}/{verb}"))))


def destroy(sandbox_id: str) -> Steps[None]:
    # A record of another team is a 404 too; to this caller it is as gone as one that ended.
    yield Request("DELETE", _path(sandbox_id), accept=(404,))


def cleanup(older_than_hours: float) -> Steps[int]:
    limit = datetime.now(timezone.utc) - timedelta(hours=older_than_hours)
    stale = [one for one in (yield from find(None, None, False)) if _created(one) < limit]
    for sandbox in stale:
        yield from destroy(sandbox.id)
    return len(stale)


def execute(
    sandbox_id: str,
    command: Union[str, list[str]],
    timeout: Optional[int],
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    user: Optional[str],
    stdin: Optional[str],
) -> Steps[ExecutionResult]:
    body = _given(timeout=timeout, cwd=cwd, env=_dict(env), user=user, stdin=stdin)
    body["command" if isinstance(command, str) else "argv"] = command
    seconds = (timeout or _COMMAND_SECONDS) + _MARGIN
    reply = yield from ask(Request("POST", f"{_path(sandbox_id)}/execute", json=body, timeout=seconds))
    return ExecutionResult(**{one.name: reply[one.name] for one in fields(ExecutionResult)})


def write(sandbox_id: str, path: str, data: bytes) -> Steps[int]:
    request = Request("PUT", f"{_path(sandbox_id)}/files", params={"path": path}, content=data, timeout=_TRANSFER)
    return int((yield from ask(request))["size"])


def read(sandbox_id: str, path: str) -> Steps[bytes]:
    reply = yield Request("GET", f"{_path(sandbox_id)}/files", params={"path": path}, timeout=_TRANSFER)
    return reply.content


def _path(sandbox_id: str) -> str:
    return f"{_BASE}/{segment(sandbox_id)}"


def _created(sandbox: Sandbox) -> datetime:
    return datetime.fromisoformat(str(sandbox.state.created_at).replace("Z", "+00:00"))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _dict(values: Optional[Mapping[str, Any]]) -> Optional[dict[str, Any]]:
    return None if values is None else dict(values)
