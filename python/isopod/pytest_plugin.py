"""A pytest plugin: a sandbox for each test, which is gone after it, whatever happened.

    def test_it(sandbox):
        assert sandbox.commands.run("echo hello").stdout == "hello\\n"

| fixture | gives |
|---|---|
| ``sandbox`` | a new ``e2b_code_interpreter.Sandbox`` |
| ``sandbox_factory`` | a function that creates more, with the arguments of ``Sandbox.create`` |
| ``isopod_session`` | a run of its own, ``isopod.Session`` |

``@pytest.mark.sandbox(template="base", timeout=60, envs={…})`` sets the arguments of ``sandbox``. Without
``E2B_API_KEY``, tests that use a fixture are skipped; with ``--require-sandbox`` they fail.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator
from uuid import uuid4

import pytest

MARK = "sandbox"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("isopod")
    group.addoption("--require-sandbox", action="store_true", help="fail tests that need a sandbox if there is no server")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(**arguments): arguments of Sandbox.create for the `sandbox` fixture")


@pytest.fixture
def sandbox_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Creates sandboxes that end with the test."""
    _require_server(request.config)
    from e2b_code_interpreter import Sandbox

    created: list[Any] = []

    def create(**arguments: Any) -> Any:
        # Should this process be killed, the server ends the sandbox by its timeout.
        metadata = {"pytest": request.node.nodeid, **arguments.pop("metadata", {})}
        arguments.setdefault("timeout", 300)
        sandbox = Sandbox.create(metadata=metadata, **arguments)
        created.append(sandbox)
        return sandbox

    yield create
    _kill(created)


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, sandbox_factory: Callable[..., Any]) -> Any:
    """A sandbox for this test."""
    mark = request.node.get_closest_marker(MARK)
    return sandbox_factory(**(mark.kwargs if mark else {}))


@pytest.fixture
def isopod_session(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A run for this test."""
    _require_server(request.config)
    from isopod.sessions import Session

    with Session(f"pytest-{uuid4().hex}") as session:
        yield session


def _require_server(config: pytest.Config) -> None:
    if os.environ.get("E2B_API_KEY"):
        return
    reason = "E2B_API_KEY is not set; start `isopod serve` and paste the lines that it prints"
    if config.getoption("--require-sandbox"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _kill(created: list[Any]) -> None:
    """Ends all of them, even if one can't be ended."""
    failed = []
    for sandbox in created:
        try:
            sandbox.kill()
        except Exception as error:
            failed.append(f"{sandbox.sandbox_id}: {error}")
    if failed:
        raise RuntimeError("these sandboxes could not be ended: " + "; ".join(failed))
