"""The loop of an agent: the model answers, its calls of tools are made, and it sees the results, until it has a text."""

import json
from typing import Any

from model import Answer, Call, Message, Model
from tools import Result, Tool

#: A model that still calls tools after this many answers is going in circles.
MAX_TURNS = 30
#: A model that sends arguments that can't be read this often in a row doesn't learn from the errors that it gets.
MAX_UNREADABLE = 3


class ConversationError(Exception):
    """Why a conversation has no end."""


class Conversation:
    def __init__(self, model: Model, agent: str, messages: list[Message], *, model_name: str = "") -> None:
        self.model = model
        self.agent = agent
        self.model_name = model_name
        self.messages = messages
        self.tools: list[Tool] = []
        #: What happened so far. It counts also if the conversation fails.
        self.input_tokens = 0
        self.output_tokens = 0
        self.executed: list[dict[str, Any]] = []
        self.files: list[str] = []
        self._unreadable = 0

    async def finish(self) -> str:
        """Goes on until the model answers with a text."""
        for _ in range(MAX_TURNS):
            answer = await self.step()
            if not answer.calls:
                return answer.text
        raise ConversationError(f"the model gave no answer within {MAX_TURNS} turns")

    async def step(self) -> Answer:
        """One answer of the model, with the calls that it makes."""
        definitions = [tool.definition for tool in self.tools]
        answer = await self.model.answer(self.messages, definitions, agent=self.agent, model=self.model_name)
        self.input_tokens += answer.input_tokens
        self.output_tokens += answer.output_tokens
        self.messages.append(answer.message())
        for call in answer.calls:
            result = await self._use(call)
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        return answer

    async def _use(self, call: Call) -> Result:
        tools = {tool.name: tool for tool in self.tools}
        if call.name not in tools:
            return failure(f"there is no tool {call.name!r}; there are {', '.join(tools)}")
        try:
            arguments = read_arguments(call)
        except ValueError as error:
            return self._refuse(call, error)
        self._unreadable = 0
        result = await tools[call.name].call(arguments)
        self.executed.append({"name": call.name, "arguments": arguments, "success": result.get("success", False)})
        self.files += [name for name in result.get("files_generated", []) if name not in self.files]
        return result

    def _refuse(self, call: Call, error: ValueError) -> Result:
        self._unreadable += 1
        reason = f"the arguments for {call.name} are no JSON object: {error}"
        if self._unreadable == MAX_UNREADABLE:
            raise ConversationError(f"the model made {MAX_UNREADABLE} unreadable calls in a row; {reason}")
        return failure(reason)


def read_arguments(call: Call) -> dict[str, Any]:
    arguments = json.loads(call.arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError(f"it is a {type(arguments).__name__}")
    return arguments


def failure(error: str) -> Result:
    return {"success": False, "error": error}
