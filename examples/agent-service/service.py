"""The routes that the server calls. README.md says how to start it.

    POST   /invoke                     run the agent of a node
    POST   /plan                       write a workflow
    DELETE /runtime/{run_id}/cleanup   the run is over

Others that agent services of the kernel have: ``/health``, ``/invoke/batch``, ``/compile-pattern``, ``/agents/list``,
``/models/available`` and the WebSocket ``/ws/execute/{run_id}/{agent_id}``.
"""

import asyncio
from typing import Any

import isopod
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse
from isopod.errors import IsopodError

import agent
import planner
import redis_health
from conversation import ConversationError
from execute import execute
from model import Model, ModelError
from protocol import Invocation, Plan, Reply, Rule, Text
from settings import Settings
from under_way import UnderWay


def create_app(model: Model, redis_url: str) -> FastAPI:
    app = FastAPI(title="Agent service")
    under_way = UnderWay()

    async def invoked(invocation: Invocation, caller: Request | WebSocket) -> Reply:
        reply = await under_way.run(invocation.run_id, agent.invoke(invocation, model), caller)
        return reply or Reply(agent_id=invocation.agent_id, success=False, error="the run is over")

    @app.post("/invoke", response_model_exclude_none=True)
    async def invoke(invocation: Invocation, request: Request) -> Reply:
        return await invoked(invocation, request)

    @app.post("/invoke/batch", response_model_exclude_none=True)
    async def invoke_batch(invocations: list[Invocation], request: Request) -> list[Reply]:
        return await asyncio.gather(*(invoked(invocation, request) for invocation in invocations))

    @app.websocket("/ws/execute/{run_id}/{agent_id}")
    async def execute_one(socket: WebSocket, run_id: str, agent_id: str) -> None:
        await execute(socket, run_id, agent_id, invoked)

    @app.delete("/runtime/{run_id}/cleanup")
    async def clean_up(run_id: str) -> dict[str, Any]:
        # The server removes the sandbox. What is left to end here are agents that still think.
        return {"status": "cleaned", "run_id": run_id, "cancelled": under_way.cancel(run_id)}

    @app.post("/plan", response_model_exclude_none=True)
    async def plan(wanted: Text) -> Plan:
        return await planner.plan(wanted.text, model)

    @app.post("/compile-pattern")
    async def compile_pattern(wanted: Text) -> Rule:
        return await planner.compile_pattern(wanted.text, model)

    @app.get("/agents/list")
    async def list_agents() -> dict[str, Any]:
        tools = [tool["function"]["name"] for tool in await isopod.tools.adefinitions("openai")]
        does = "Works on its prompt in the sandbox of its run"
        return {"agents": [{"id": "agent", "role": "worker", "description": does, "tools": [*tools, "delegate"]}]}

    @app.get("/models/available")
    async def list_models() -> dict[str, Any]:
        return {"models": [{"id": name} for name in await model.names()]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        try:
            is_connected = bool(await model.names())
        except ModelError:
            is_connected = False
        redis_connected = await redis_health.is_connected(redis_url)
        return {"status": "ok", "llm_connected": is_connected, "redis_connected": redis_connected}

    @app.exception_handler(ModelError)
    @app.exception_handler(ConversationError)
    @app.exception_handler(IsopodError)
    async def explain(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=502)

    return app


def main() -> None:
    settings = Settings.from_environment()
    # Agents at work get a moment to finish. The server tries their nodes again if they have `retries`.
    app = create_app(settings.model(), settings.redis_url)
    uvicorn.run(app, host=settings.bind, port=settings.port, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
