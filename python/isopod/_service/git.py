"""Git in a sandbox's ``/workspace/repo``, ``/api/v1/git``."""

from __future__ import annotations

from typing import Any, Optional

from .._http import Request, Steps, ask, segment
from .records import GitResult

_BASE = "/api/v1/git"


def clone(sandbox_id: str, repo_url: str, branch: Optional[str], token: Optional[str]) -> Steps[GitResult]:
    return _post("clone", sandbox_id=sandbox_id, repo_url=repo_url, branch=branch, token=token)


def branch(sandbox_id: str, name: Optional[str]) -> Steps[GitResult]:
    return _post("branch", sandbox_id=sandbox_id, name=name)


def commit(sandbox_id: str, message: str, paths: Optional[list[str]]) -> Steps[GitResult]:
    return _post("commit", sandbox_id=sandbox_id, message=message, paths=paths)


def push(sandbox_id: str, token: Optional[str]) -> Steps[GitResult]:
    return _post("push", sandbox_id=sandbox_id, token=token)


def history(sandbox_id: str) -> Steps[GitResult]:
    return GitResult((yield from ask(Request("GET", f"{_BASE}/{segment(sandbox_id)}/history"))))


def _post(verb: str, **values: Any) -> Steps[GitResult]:
    body = {name: value for name, value in values.items() if value is not None}
    return GitResult((yield from ask(Request("POST", f"{_BASE}/{verb}", json=body, timeout=300.0))))
