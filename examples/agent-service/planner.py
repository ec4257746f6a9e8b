"""What the model writes for people: workflows, and rules for them. It hands them in with a tool that checks them."""

from typing import TypeVar

from pydantic import BaseModel

from conversation import Conversation, ConversationError
from model import Message, Model
from protocol import Plan, Rule
from tools import Form

T = TypeVar("T", bound=BaseModel)

#: How many answers the model has to get it right.
ATTEMPTS = 4

PLAN = """Write a workflow that does what the user asks, and hand it in with the tool.
A step is a shell command, Python code, or a prompt for an agent that can run code and commands itself. All steps share
one sandbox, so they pass on data in files. Steps that don't depend on each other run at the same time. Use as few steps
as possible, and an agent only where something has to be decided."""

RULE = """Write the rule that the user describes, and hand it in with the tool. A rule watches the events of a workflow.
Its condition is a text that the event contains, for example a part of a command."""


async def plan(text: str, model: Model) -> Plan:
    form = Form("submit_plan", "Hand in the workflow.", Plan, "Thank you.")
    return await filled_in(form, "/plan", PLAN, text, model)


async def compile_pattern(text: str, model: Model) -> Rule:
    form = Form("submit_rule", "Hand in the rule.", Rule, "Thank you.")
    return await filled_in(form, "/compile-pattern", RULE, text, model)


async def filled_in(form: Form[T], agent: str, task: str, text: str, model: Model) -> T:
    messages: list[Message] = [{"role": "system", "content": task}, {"role": "user", "content": text}]
    conversation = Conversation(model, agent, messages)
    conversation.tools = [form.tool]
    for _ in range(ATTEMPTS):
        answer = await conversation.step()
        if form.value is not None:
            return form.value
        if not answer.calls:
            messages.append({"role": "user", "content": f"Call the tool {form.tool.name} with it."})
    last = messages[-1]["content"]
    raise ConversationError(f"the model handed in nothing valid in {ATTEMPTS} answers; the last reply to it was: {last}")
