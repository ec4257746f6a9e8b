"""Tool definitions in the formats of models' APIs, and the calls that come back from them."""

import asyncio
import json

import pytest

import isopod
from isopod.toolkit import TOOLS

RUN_TOOLS = ["execute_python", "execute_code", "run_command", "read_file", "write_file", "list_files"]


def test_each_format_has_the_servers_schema():
    plain = {one["name"]: one for one in isopod.tools.definitions("mcp")}
    assert list(plain) == RUN_TOOLS
    schema = plain["execute_python"]["inputSchema"]
    assert schema["type"] == "object" and schema["required"] == ["code"] and not schema["additionalProperties"]
    openai = isopod.tools.definitions("openai")
    assert openai[0]["type"] == "function" and openai[0]["function"]["parameters"] == schema
    assert isopod.tools.definitions("openai-responses")[0]["parameters"] == schema
    anthropic = isopod.tools.definitions("anthropic")
    described = plain["execute_python"]["description"]
    assert anthropic[0] == {"name": "execute_python", "description": described, "input_schema": schema}
    assert [one["name"] for one in isopod.tools.definitions("anthropic", source="toolkit")] == list(TOOLS)
    assert asyncio.run(isopod.tools.adefinitions("anthropic")) == anthropic


def test_tools_are_chosen_by_name():
    chosen = isopod.tools.definitions("mcp", include=["run_command", "read_file"], exclude=["read_file"])
    assert [one["name"] for one in chosen] == ["run_command"]
    for wrong in ({"include": ["nope"]}, {"exclude": ["nope"]}):
        with pytest.raises(ValueError, match="unknown tools: nope"):
            isopod.tools.definitions("mcp", **wrong)
    with pytest.raises(ValueError, match="unknown format"):
        isopod.tools.definitions("other")


def test_a_models_calls_are_answered_as_json(unique):
    with isopod.session(unique) as run:
        assert [one["name"] for one in run.tools("anthropic")] == RUN_TOOLS
        # OpenAI's arguments are text, Anthropic's and MCP's are objects.
        run.call("execute_python", '{"code": "x = 20"}', agent_id="ada")
        done = json.loads(run.call("execute_python", {"code": "print(x * 2 + 2)"}))
        assert done["success"] and "42" in done["result"]
        assert json.loads(run.call("write_file", {"filename": "a.txt", "content": "hello"}))["success"]
        assert json.loads(run.call("read_file", {"filename": "a.txt"}))["result"] == "hello"
        wrong = [run.call("nope", {}), run.call("read_file", {"wrong": 1}), run.call("read_file", "not json")]
        assert [json.loads(one)["success"] for one in wrong] == [False, False, False]
        assert json.loads(wrong[0])["error"] == "Unknown tool: nope"
