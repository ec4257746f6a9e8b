"""The model: any service that speaks OpenAI's chat completions.

A model answers a conversation with a text or with calls of tools. ``scripted.py`` has one that needs no key.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import openai
from openai.types.chat import ChatCompletion

Message = dict[str, Any]

#: Workflows of the agent kernel choose a model by these words. Here they all mean the one of ``MODEL``.
KERNEL_WORDS = {"", "fast", "reasoning", "thinking", "custom"}


class ModelError(Exception):
    """Why the model gave no answer, in a sentence for the person who reads the failed run."""


@dataclass
class Call:
    """A call of a tool. The arguments are the model's own text, which may not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass
class Answer:
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0

    def message(self) -> Message:
        """The answer as part of the conversation."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


class Model(Protocol):
    async def answer(self, messages: list[Message], tools: list[dict[str, Any]], *, agent: str, model: str = "") -> Answer:
        """Continues a conversation. ``agent`` says who asks, and ``model`` is what the workflow has for it."""

    async def names(self) -> list[str]:
        """The models that a workflow can name."""


class OpenAIModel:
    def __init__(self, name: str, *, timeout: float, retries: int) -> None:
        """``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` say where the service is and who asks."""
        self.name = name
        self.timeout = timeout
        self.client = openai.AsyncOpenAI(timeout=timeout, max_retries=retries)

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]], *, agent: str, model: str = "") -> Answer:
        name = self.name if model in KERNEL_WORDS else model
        request: dict[str, Any] = {"model": name, "messages": messages} | ({"tools": tools} if tools else {})
        try:
            completion = await self.client.chat.completions.create(**request)
        except openai.OpenAIError as error:
            raise self._explained(error) from error
        return read_completion(completion)

    async def names(self) -> list[str]:
        try:
            return [model.id async for model in self.client.models.list()]
        except openai.OpenAIError as error:
            raise self._explained(error) from error

    def _explained(self, error: openai.OpenAIError) -> ModelError:
        where = self.client.base_url
        if isinstance(error, openai.APITimeoutError):
            return ModelError(f"the model did not answer within {self.timeout:g} s (MODEL_TIMEOUT)")
        if isinstance(error, openai.APIStatusError):
            return ModelError(f"the model's service returned {error.status_code}: {error.message}")
        if isinstance(error, openai.APIConnectionError):
            return ModelError(f"the model's service at {where} cannot be reached: {error.__cause__ or error}")
        return ModelError(f"the model's service at {where} failed: {error}")


def read_completion(completion: Any) -> Answer:
    # The client passes on what is no JSON as text, for example the page of a proxy.
    if not isinstance(completion, ChatCompletion) or not completion.choices:
        raise ModelError("the model's service returned no chat completion; check OPENAI_BASE_URL")
    choice, usage = completion.choices[0], completion.usage
    made = [call for call in choice.message.tool_calls or [] if call.type == "function"]
    calls = [Call(call.id, call.function.name, call.function.arguments) for call in made]
    text = choice.message.content or ""
    if not text and not calls:
        raise ModelError(f"the model returned neither text nor a call of a tool (finish_reason {choice.finish_reason!r})")
    return Answer(text, calls, usage.prompt_tokens if usage else 0, usage.completion_tokens if usage else 0)
