"""The messages of the protocol. docs/agent-service.md says what each field means.

``Node``, ``Delegation``, ``Plan`` and ``Rule`` are also the schemas that the model fills in. What it gets wrong is refused
here, in words that it can act on, before the server sees it.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Invocation(BaseModel):
    """What the server sends to ``POST /invoke``. Fields that this service doesn't use are ignored, new ones too."""

    run_id: str
    agent_id: str
    prompt: str = ""
    user_directive: str = ""
    model: str = ""
    input_data: dict[str, Any] = {}
    file_paths: list[str] = []
    tools: list[str] = []
    allow_delegation: bool = False
    graph_view: str = ""


class Text(BaseModel):
    """What the server sends to ``POST /plan``."""

    text: str = Field(min_length=1)


class Node(BaseModel):
    """A step: a shell command, Python code, or a prompt for another agent."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    command: str | None = Field(None, description="A line for the shell")
    code: str | None = Field(None, description="Python code")
    prompt: str | None = Field(None, description="What another agent is to do")
    depends_on: list[str] = Field([], description="Ids of the steps that must be done before")
    allow_delegation: bool = Field(False, description="Whether the agent may add steps")

    @model_validator(mode="after")
    def has_one_kind_of_work(self) -> Node:
        if sum(work is not None for work in (self.command, self.code, self.prompt)) != 1:
            raise ValueError(f"step {self.id!r} needs exactly one of command, code and prompt")
        return self


class Delegation(BaseModel):
    """Steps that an agent adds to its own run."""

    model_config = ConfigDict(extra="forbid")

    reason: str
    new_nodes: list[Node] = Field(min_length=1)
    strategy: Literal["child", "sibling"] = Field("child", description="child: before the steps that wait for you")
    prune_nodes: list[str] = Field([], description="Ids of steps to remove that have not started")

    @model_validator(mode="after")
    def is_a_graph(self) -> Delegation:
        # New steps may also depend on steps that the run already has. Those, only the server knows.
        check_order(self.new_nodes)
        return self


class Reply(BaseModel):
    """The answer to an invocation."""

    agent_id: str
    success: bool
    output: dict[str, Any] | None = None
    error: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    executed_tools: list[dict[str, Any]] = []
    delegation: Delegation | None = None


class Plan(BaseModel):
    """A workflow."""

    model_config = ConfigDict(extra="forbid")

    name: str
    nodes: list[Node] = Field(min_length=1)

    @model_validator(mode="after")
    def is_a_graph(self) -> Plan:
        check_order(self.nodes)
        missing = {name for node in self.nodes for name in node.depends_on} - {node.id for node in self.nodes}
        if missing:
            raise ValueError(f"steps depend on steps that don't exist: {', '.join(sorted(missing))}")
        return self


class Action(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["Interrupt", "RequestApproval"]
    reason: str


class Rule(BaseModel):
    """A rule of a workflow: ends the run or asks a person when something happens."""

    model_config = ConfigDict(extra="forbid")

    id: str
    trigger_event: Literal["AgentStarted", "AgentCompleted", "AgentFailed", "ToolCall"]
    condition: str = Field(description="A text that the event must contain, or * for always")
    action: Action


def check_order(nodes: list[Node]) -> None:
    """Refuses two steps of the same name, and steps that wait for each other."""
    names = [node.id for node in nodes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two steps have the same id: {', '.join(twice)}")
    try:
        TopologicalSorter({node.id: node.depends_on for node in nodes}).prepare()
    except CycleError as error:
        raise ValueError(f"steps wait for each other: {' -> '.join(error.args[1])}") from error
