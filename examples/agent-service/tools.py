"""Tools for the model: those of the run's sandbox, and forms that the model fills in."""

import json
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Generic, TypeVar

import isopod
from pydantic import BaseModel, ValidationError

from protocol import Invocation

T = TypeVar("T", bound=BaseModel)
Result = dict[str, Any]

#: What the model sees of a call in the sandbox. The rest, such as images, would fill its context.
SHOWN = ("success", "result", "error", "logs", "files_generated")
#: How much of a text the model sees, in characters. Programs can print more than its context holds.
MAX_TEXT = 20_000


@dataclass
class Tool:
    #: Its name, description and parameters, as OpenAI's API takes them.
    definition: dict[str, Any]
    #: Takes the model's arguments. What goes wrong is a result too: the model reads it and can correct itself.
    call: Callable[[dict[str, Any]], Awaitable[Result]]

    @property
    def name(self) -> str:
        return str(self.definition["function"]["name"])


class UnknownTool(Exception):
    """The workflow gives an agent a tool that the server doesn't have."""


async def sandbox_tools(invocation: Invocation) -> list[Tool]:
    """The tools of the run's sandbox that the node names, or all of them if it names none."""
    run = isopod.asession(invocation.run_id)
    definitions = {tool["function"]["name"]: tool for tool in await run.tools("openai")}
    missing = [name for name in invocation.tools if name not in definitions]
    if missing:
        raise UnknownTool(f"the server has no tool {', '.join(missing)}; it has {', '.join(definitions)}")

    def tool(name: str) -> Tool:
        async def call(arguments: dict[str, Any]) -> Result:
            result = json.loads(await run.call(name, arguments, agent_id=invocation.agent_id))
            return {field: shortened(result[field]) for field in SHOWN if result.get(field) is not None}

        return Tool(definitions[name], call)

    return [tool(name) for name in invocation.tools or definitions]


def shortened(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= MAX_TEXT:
        return value
    return f"{value[:MAX_TEXT]}\n[{len(value) - MAX_TEXT} more characters]"


class Form(Generic[T]):
    """A tool that takes one thing from the model, checks it and keeps it: a delegation, a plan or a rule."""

    def __init__(self, name: str, description: str, kind: type[T], thanks: str) -> None:
        self.kind = kind
        self.thanks = thanks
        self.value: T | None = None
        function = {"name": name, "description": description, "parameters": kind.model_json_schema()}
        self.tool = Tool({"type": "function", "function": function}, self._take)

    async def _take(self, arguments: dict[str, Any]) -> Result:
        try:
            self.value = self.kind.model_validate(arguments)
        except ValidationError as error:
            return {"success": False, "error": explained(error)}
        return {"success": True, "result": self.thanks}


def explained(error: ValidationError) -> str:
    """What is wrong with the model's arguments, one line for each mistake."""
    mistakes = [(".".join(map(str, mistake["loc"])) or "arguments", mistake["msg"]) for mistake in error.errors()]
    return "\n".join(f"{place}: {message}" for place, message in mistakes)
