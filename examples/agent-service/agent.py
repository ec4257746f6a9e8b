"""An agent of a workflow: works on its prompt in the sandbox of its run, and answers what it found."""

import json
from typing import Any

from isopod.errors import IsopodError

from conversation import Conversation, ConversationError
from model import Message, Model, ModelError
from protocol import Delegation, Invocation, Reply
from tools import Form, Tool, UnknownTool, sandbox_tools, shortened

SYSTEM = """You are the agent {agent!r}, one step of a workflow.
Use your tools to do what you are asked. They work in a sandbox that all steps of the workflow share: files, packages
and Python variables that others left are there. If a tool reports an error, correct your call and try again.
When you are done, answer with the result as text, without a call of a tool."""

DELEGATE = "Add steps to the workflow, for work that others should do. They start when you have given your answer."
DELEGATED = "The steps start after your answer. Finish with a short text now."


async def invoke(invocation: Invocation, model: Model) -> Reply:
    """Answers an invocation. What goes wrong is an answer too: the server then fails the node or tries it again."""
    delegation = Form("delegate", DELEGATE, Delegation, DELEGATED)
    conversation = Conversation(model, invocation.agent_id, first_messages(invocation), model_name=invocation.model)
    try:
        conversation.tools = await tools_of(invocation, delegation)
        text = await conversation.finish()
    except (ModelError, ConversationError, UnknownTool) as error:
        return reply(invocation, conversation, error=str(error))
    except IsopodError as error:
        return reply(invocation, conversation, error=f"the sandbox server failed: {error}")
    output = {"result": text, "files_generated": conversation.files}
    return reply(invocation, conversation, output=output, delegation=delegation.value)


async def tools_of(invocation: Invocation, delegation: Form[Delegation]) -> list[Tool]:
    tools = await sandbox_tools(invocation)
    return [*tools, delegation.tool] if invocation.allow_delegation else tools


def reply(invocation: Invocation, conversation: Conversation, error: str | None = None, **result: Any) -> Reply:
    """An answer with what the conversation has cost, whatever became of it."""
    return Reply(
        agent_id=invocation.agent_id,
        success=error is None,
        error=error,
        input_tokens=conversation.input_tokens,
        output_tokens=conversation.output_tokens,
        executed_tools=conversation.executed,
        **result,
    )


def first_messages(invocation: Invocation) -> list[Message]:
    parts = [invocation.prompt, invocation.user_directive]
    for step, output in invocation.input_data.items():
        parts.append(f"Output of step {step!r}:\n{as_text(output)}")
    if invocation.file_paths:
        parts.append(f"Files for you: {', '.join(invocation.file_paths)}")
    if invocation.allow_delegation:
        parts.append(f"The steps of the workflow:\n{invocation.graph_view}")
    return [
        {"role": "system", "content": SYSTEM.format(agent=invocation.agent_id)},
        {"role": "user", "content": "\n\n".join(part for part in parts if part)},
    ]


def as_text(output: object) -> str:
    # Nodes with code and commands have the text for agents in `result`, and so have the agents of this service.
    result = output.get("result", output) if isinstance(output, dict) else output
    return str(shortened(result if isinstance(result, str) else json.dumps(result)))
