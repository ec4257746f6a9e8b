"""A model that reads its answers from a file: for a first try without a key, and for tests of workflows.

The file has the turns of each agent, by the agent's id, and those of ``/plan`` and ``/compile-pattern``:

    {"thinker": [{"tool": "execute_python", "arguments": {"code": "print(6 * 7)"}}, {"say": "It is {stdout}."}]}

``{stdout}`` is what the tool call before printed. Arguments may also be a text, for example one that is no JSON.
"""

import json
from pathlib import Path
from typing import Any

from model import Answer, Call, Message, ModelError

#: What each answer is said to cost.
INPUT_TOKENS, OUTPUT_TOKENS = 10, 5


class ScriptedModel:
    def __init__(self, path: str) -> None:
        self.path = path
        self.turns: dict[str, list[dict[str, Any]]] = json.loads(Path(path).read_text())

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]], *, agent: str, model: str = "") -> Answer:
        # The conversation says which turn is next, so that a node that is tried again starts at its first one.
        number = sum(message["role"] == "assistant" for message in messages)
        turns = self.turns.get(agent, [])
        if number >= len(turns):
            raise ModelError(f"{self.path} has {len(turns)} turns for {agent!r}, and turn {number + 1} is needed")
        return read_turn(turns[number], messages, number)

    async def names(self) -> list[str]:
        return ["scripted"]


def read_turn(turn: dict[str, Any], messages: list[Message], number: int) -> Answer:
    if "say" in turn:
        return Answer(turn["say"].replace("{stdout}", last_stdout(messages)), [], INPUT_TOKENS, OUTPUT_TOKENS)
    if "tool" not in turn:
        raise ModelError(f"a turn of the script has neither `say` nor `tool`: {turn}")
    arguments = turn.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Answer("", [Call(f"call_{number}", turn["tool"], text)], INPUT_TOKENS, OUTPUT_TOKENS)


def last_stdout(messages: list[Message]) -> str:
    results = [message["content"] for message in messages if message["role"] == "tool"]
    shown = json.loads(results[-1]).get("result") if results else ""
    return str(shown).removeprefix("STDOUT:\n").strip()
