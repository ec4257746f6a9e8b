"""An invocation over a WebSocket, for a caller that wants to know when its agent has started.

The caller sends what it would send to ``POST /invoke``. It gets ``execution_started``, then ``execution_complete`` or
``execution_error``, and then the service closes the connection.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from protocol import Invocation, Reply
from tools import explained

Invoke = Callable[[Invocation, WebSocket], Awaitable[Reply]]


async def execute(socket: WebSocket, run_id: str, agent_id: str, invoke: Invoke) -> None:
    """Answers one invocation. If the caller hangs up, its agent stops."""
    if is_from_elsewhere(socket):
        return await socket.close()
    await socket.accept()
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        return
    caller = Caller(socket, agent_id)
    try:
        invocation = read_invocation(message, run_id, agent_id)
    except ValueError as error:
        await caller.tell("execution_error", error=str(error), tokens_used=0)
    else:
        await caller.tell("execution_started")
        await caller.tell_end(await invoke(invocation, socket))
    await caller.hang_up()


class Caller:
    """Who waits at the other end. It may have hung up, and then there is nobody to tell."""

    def __init__(self, socket: WebSocket, agent_id: str) -> None:
        self.socket = socket
        self.agent_id = agent_id

    async def tell(self, kind: str, **fields: Any) -> None:
        time = datetime.now(timezone.utc).isoformat()
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.socket.send_json({"type": kind, "agent_id": self.agent_id, **fields, "timestamp": time})

    async def tell_end(self, reply: Reply) -> None:
        tokens = reply.input_tokens + reply.output_tokens
        if not reply.success:
            return await self.tell("execution_error", error=reply.error, tokens_used=tokens)
        output, delegation = reply.output or {}, reply.delegation
        await self.tell(
            "execution_complete",
            output=output.get("result"),
            files_generated=output.get("files_generated", []),
            delegation=delegation.model_dump(exclude_none=True) if delegation else None,
            tokens_used=tokens,
        )

    async def hang_up(self) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.socket.close()


def is_from_elsewhere(socket: WebSocket) -> bool:
    """Whether a page of another site asks. Browsers let any page open a WebSocket, and this one would use your model."""
    origin = socket.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != socket.headers.get("host")


def read_invocation(message: Mapping[str, Any], run_id: str, agent_id: str) -> Invocation:
    """The invocation in a message. Whose it is stands in the path, and need not be repeated."""
    try:
        given = json.loads(message.get("text") or message.get("bytes") or "")
    except ValueError as error:
        raise ValueError(f"the message is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError("an invocation is a JSON object")
    path = {"run_id": run_id, "agent_id": agent_id}
    others = [name for name, value in path.items() if given.get(name, value) != value]
    if others:
        raise ValueError(f"{' and '.join(others)} must be what the path says")
    try:
        return Invocation.model_validate(given | path)
    except ValidationError as error:
        raise ValueError(explained(error)) from error
