"""The agents that are at work. They stop when nobody waits for them: the run is over, or the server has hung up."""

import asyncio
from typing import Any, Coroutine

from fastapi import Request, WebSocket


class UnderWay:
    def __init__(self) -> None:
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}

    async def run(self, run_id: str, work: Coroutine[Any, Any, Any], caller: Request | WebSocket) -> Any:
        """The result of the work, or None if it was cancelled."""
        task = asyncio.create_task(work)
        hangs_up = asyncio.create_task(wait_for_hang_up(caller))
        self._tasks.setdefault(run_id, set()).add(task)
        try:
            await asyncio.wait({task, hangs_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hangs_up.cancel()
            task.cancel()
            self._forget(run_id, task)
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def cancel(self, run_id: str) -> int:
        """Stops all agents of a run. Returns how many there were."""
        tasks = self._tasks.pop(run_id, set())
        for task in tasks:
            task.cancel()
        return len(tasks)

    def _forget(self, run_id: str, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks.get(run_id, set())
        tasks.discard(task)
        if not tasks:
            self._tasks.pop(run_id, None)


async def wait_for_hang_up(caller: Request | WebSocket) -> None:
    """The server hangs up when the timeout of the node is over, or when it stops itself."""
    while (await caller.receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass
