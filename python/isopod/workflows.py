"""Workflows: graphs of steps that the server runs in one sandbox, and cleans up after.

    state = isopod.workflow("report.yaml").run()
    print(state.status, state.output("average")["stdout"])

``arun`` is the same for asynchronous code. docs/workflows.md has the format of the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Iterator, Mapping, Optional, Union

import httpx

from ._http import Client, Request, Steps, ask, segment
from .errors import IsopodError, UnreachableError, error_of

__all__ = ["Event", "Run", "RunFailed", "RunState", "Workflow", "workflow"]

Definition = Union[str, "os.PathLike[str]", Mapping[str, Any]]
#: A run survives a restart of its server, so who follows it tries again for a minute when the connection breaks.
_RECONNECTS = 60
_PAUSE = 1.0


class RunFailed(IsopodError):
    """The run ended, and not all nodes are done."""

    def __init__(self, state: "RunState") -> None:
        super().__init__(f"run {state.run_id} failed ({state.reason}): {state.error or 'no reason given'}")
        self.state = state


@dataclass(frozen=True)
class Event:
    """Something that happened in a run, such as ``AgentCompleted`` or ``RunEnded``."""

    id: int
    type: str
    node: Optional[str]
    payload: dict[str, Any]
    timestamp: str

    @property
    def needs_approval(self) -> bool:
        """Whether ``node`` now waits for ``Run.approve``."""
        return self.type == "SystemIntervention" and self.payload.get("action") == "pause"


@dataclass(frozen=True)
class RunState:
    """A run as the server knows it."""

    run_id: str
    #: ``running``, ``awaitingapproval``, ``completed`` or ``failed``.
    status: str
    #: Why it ended; docs/workflows.md has the list.
    reason: Optional[str]
    error: Optional[str]
    nodes: list[dict[str, Any]]
    #: The whole reply.
    raw: dict[str, Any] = field(repr=False)

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed")

    def node(self, node_id: str) -> dict[str, Any]:
        found = [node for node in self.nodes if node["id"] == node_id]
        if not found:
            raise KeyError(f"run {self.run_id} has no node {node_id!r}")
        return found[0]

    def output(self, node_id: str) -> Any:
        """What a node gave. For code and commands: ``stdout``, ``stderr``, ``result`` and ``exit_code``."""
        return self.node(node_id)["output"]

    def check(self) -> "RunState":
        """Raises ``RunFailed`` if the run failed."""
        if self.status == "failed":
            raise RunFailed(self)
        return self


class Run:
    """A run of a workflow, by its id."""

    def __init__(self, run_id: str, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> None:
        self.run_id = run_id
        self._client = Client.resolve(api_key, api_url)

    def state(self) -> RunState:
        return self._client.run(_state(self.run_id))

    async def astate(self) -> RunState:
        return await self._client.arun(_state(self.run_id))

    def events(self, after: int = 0) -> Iterator[Event]:
        """Follows the run to its end. Continues by itself when a connection breaks, without losing an event."""
        reader = _Reader(after)
        while not reader.is_over:
            try:
                with httpx.Client(**self._client.options()) as client, client.stream(**self._following(reader)) as reply:
                    if reply.status_code >= 400:
                        raise _refused(reply.status_code, reply.read())
                    for line in reply.iter_lines():
                        yield from reader.feed(line)
                reader.ended()
            except httpx.TransportError as error:
                reader.broke(error)
            if not reader.is_over:
                time.sleep(_PAUSE)

    async def aevents(self, after: int = 0) -> AsyncIterator[Event]:
        reader = _Reader(after)
        while not reader.is_over:
            try:
                async with httpx.AsyncClient(**self._client.options()) as client:
                    async with client.stream(**self._following(reader)) as reply:
                        if reply.status_code >= 400:
                            raise _refused(reply.status_code, await reply.aread())
                        async for line in reply.aiter_lines():
                            for event in reader.feed(line):
                                yield event
                reader.ended()
            except httpx.TransportError as error:
                reader.broke(error)
            if not reader.is_over:
                await asyncio.sleep(_PAUSE)

    def wait(self, on_event: Optional[Callable[[Event], Any]] = None) -> RunState:
        """Waits for the end of the run, however long it takes."""
        for event in self.events():
            if on_event is not None:
                on_event(event)
        return self.state()

    async def await_end(self, on_event: Optional[Callable[[Event], Any]] = None) -> RunState:
        async for event in self.aevents():
            if on_event is not None:
                on_event(event)
        return await self.astate()

    def approve(self, node: Optional[str] = None, approved: bool = True) -> None:
        """Answers what waits for a person: one node, or all."""
        self._client.run(_control(self.run_id, "approve", {"node": node, "approved": approved}))

    async def aapprove(self, node: Optional[str] = None, approved: bool = True) -> None:
        await self._client.arun(_control(self.run_id, "approve", {"node": node, "approved": approved}))

    def stop(self) -> None:
        """Ends the run. Its sandbox is removed."""
        self._client.run(_control(self.run_id, "stop", {}))

    async def astop(self) -> None:
        await self._client.arun(_control(self.run_id, "stop", {}))

    def _following(self, reader: "_Reader") -> dict[str, Any]:
        return {
            "method": "GET",
            "url": f"/runtime/{segment(self.run_id)}/events",
            "headers": {"Last-Event-ID": str(reader.last)} if reader.last else {},
            # The server sends a line at least every 15 seconds.
            "timeout": httpx.Timeout(None, connect=10.0, read=120.0),
        }


class Workflow:
    """A workflow that can be run any number of times."""

    def __init__(self, definition: Definition, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> None:
        self._definition = definition
        self._options: dict[str, Any] = {"api_key": api_key, "api_url": api_url}
        self._client = Client.resolve(api_key, api_url)

    def start(self) -> Run:
        """Starts a run, and doesn't wait for it."""
        return Run(self._client.run(_start(*_read(self._definition))), **self._options)

    def run(self, *, check: bool = False, on_event: Optional[Callable[[Event], Any]] = None) -> RunState:
        """Runs the workflow to its end. With ``check``, a failed run raises ``RunFailed``."""
        state = self.start().wait(on_event)
        return state.check() if check else state

    async def astart(self) -> Run:
        kind, content = await asyncio.to_thread(_read, self._definition)
        return Run(await self._client.arun(_start(kind, content)), **self._options)

    async def arun(self, *, check: bool = False, on_event: Optional[Callable[[Event], Any]] = None) -> RunState:
        state = await (await self.astart()).await_end(on_event)
        return state.check() if check else state


def workflow(definition: Definition, *, api_key: Optional[str] = None, api_url: Optional[str] = None) -> Workflow:
    """A workflow from a YAML or JSON file, or from a dictionary."""
    return Workflow(definition, api_key=api_key, api_url=api_url)


class _Reader:
    """Puts server-sent events together from their lines."""

    def __init__(self, after: int) -> None:
        self.last = after
        self.is_over = False
        self._data: list[str] = []
        self._breaks = 0

    def feed(self, line: str) -> Iterator[Event]:
        self._breaks = 0
        if line.startswith("data:"):
            self._data.append(line[5:].strip())
        elif not line and self._data:
            fields = json.loads("\n".join(self._data))
            self._data = []
            self.last = int(fields["id"])
            self.is_over = fields["event_type"] == "RunEnded"
            node, payload = fields.get("agent_id"), dict(fields.get("payload") or {})
            yield Event(self.last, fields["event_type"], node, payload, fields["timestamp"])

    def ended(self) -> None:
        """A server that stops ends its replies properly."""
        if not self.is_over:
            self.broke(ConnectionError("the server ended the reply before the end of the run"))

    def broke(self, error: Exception) -> None:
        self._data = []
        self._breaks += 1
        if self._breaks > _RECONNECTS:
            raise UnreachableError(f"lost the run's events: {error}") from error


def _read(definition: Definition) -> tuple[str, bytes]:
    """The media type and text of a workflow. JSON is YAML, but the server's errors are better for what it is."""
    if isinstance(definition, Mapping):
        return "application/json", json.dumps(definition).encode()
    path = Path(definition)
    kind = "application/json" if path.suffix == ".json" else "application/yaml"
    return kind, path.read_bytes()


def _start(kind: str, content: bytes) -> Steps[str]:
    started = yield from ask(Request("POST", "/runtime/start", content=content, headers={"content-type": kind}))
    return str(started["run_id"])


def _state(run_id: str) -> Steps[RunState]:
    raw = yield from ask(Request("GET", "/runtime/state", params={"run_id": run_id}))
    return RunState(run_id, raw["status"], raw.get("reason"), raw.get("error"), raw["nodes"], raw)


def _control(run_id: str, verb: str, body: dict[str, Any]) -> Steps[None]:
    given = {name: value for name, value in body.items() if value is not None}
    yield Request("POST", f"/runtime/{segment(run_id)}/{verb}", json=given)


def _refused(status: int, content: bytes) -> IsopodError:
    try:
        body: Any = json.loads(content)
    except ValueError:
        body = None
    return error_of(status, body, content.decode(errors="replace"), None)
