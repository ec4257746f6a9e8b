"""How turns look in OpenAI's two APIs, `/chat/completions` and `/responses`, whole and as a stream, and in Gemini's."""

import json
from dataclasses import dataclass

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
MODEL = "scripted"


@dataclass
class Turn:
    text: str = ""
    tool: str = ""
    arguments: str = ""
    number: int = 0

    @property
    def call_id(self):
        return f"call_{self.number}"


@dataclass
class Conversation:
    """What came back after each turn of the model."""

    results: list


def of_path(path):
    end = path.split("?")[0].rstrip("/")
    return next((api for suffix, api in APIS.items() if end.endswith(suffix)), None)


class Chat:
    @staticmethod
    def conversation(body):
        results = []
        for message in body["messages"]:
            if message["role"] == "assistant":
                results.append("")
            elif results:
                results[-1] += _text(message["content"])
        return Conversation(results)

    @staticmethod
    def offered(body):
        return {tool["function"]["name"] for tool in body.get("tools") or [] if "function" in tool}

    @staticmethod
    def message(turn):
        if not turn.tool:
            return {"role": "assistant", "content": turn.text}
        call = {"name": turn.tool, "arguments": turn.arguments}
        calls = [{"index": 0, "id": turn.call_id, "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    @staticmethod
    def whole(turn):
        choice = {"index": 0, "message": Chat.message(turn), "finish_reason": Chat.reason(turn)}
        return {"id": "chat_1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": USAGE}

    @staticmethod
    def stream(turn):
        head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        said = {"index": 0, "delta": Chat.message(turn), "finish_reason": None}
        end = {"index": 0, "delta": {}, "finish_reason": Chat.reason(turn)}
        chunks = [head | {"choices": [said]}, head | {"choices": [end]}, head | {"choices": [], "usage": USAGE}]
        return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    @staticmethod
    def reason(turn):
        return "tool_calls" if turn.tool else "stop"


class Responses:
    @staticmethod
    def conversation(body):
        items = body["input"] if isinstance(body["input"], list) else []
        return Conversation([_text(item["output"]) for item in items if item.get("type") == "function_call_output"])

    @staticmethod
    def offered(body):
        return {tool.get("name") or tool["type"] for tool in body.get("tools") or []}

    @staticmethod
    def item(turn):
        if turn.tool:
            call = {"call_id": turn.call_id, "name": turn.tool, "arguments": turn.arguments}
            return {"type": "function_call", "id": f"fc_{turn.number}", "status": "completed"} | call
        part = {"type": "output_text", "text": turn.text, "annotations": []}
        return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}

    @staticmethod
    def whole(turn, status="completed"):
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2} | details
        fixed = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None}
        head = {"id": "resp_1", "object": "response", "created_at": 1, "model": MODEL, "status": status}
        return head | fixed | {"output": [Responses.item(turn)], "usage": usage}

    @staticmethod
    def stream(turn):
        item = Responses.item(turn)
        at = {"item_id": item["id"], "output_index": 0}
        if turn.tool:
            begun = item | {"arguments": "", "status": "in_progress"}
            parts = [("function_call_arguments.delta", at | {"delta": turn.arguments}),
                     ("function_call_arguments.done", at | {"arguments": turn.arguments})]
        else:
            begun, at = item | {"content": [], "status": "in_progress"}, at | {"content_index": 0}
            part = item["content"][0]
            parts = [("content_part.added", at | {"part": part | {"text": ""}}),
                     ("output_text.delta", at | {"delta": turn.text}),
                     ("output_text.done", at | {"text": turn.text}),
                     ("content_part.done", at | {"part": part})]
        begin = Responses.whole(turn, "in_progress") | {"output": []}
        events = [("created", {"response": begin}), ("output_item.added", {"output_index": 0, "item": begun}), *parts,
                  ("output_item.done", {"output_index": 0, "item": item}), ("completed", {"response": Responses.whole(turn)})]
        return "".join(_event(number, f"response.{name}", data) for number, (name, data) in enumerate(events))


class Gemini:
    @staticmethod
    def conversation(body):
        parts = [part for content in body["contents"] for part in content["parts"]]
        return Conversation([json.dumps(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part])

    @staticmethod
    def offered(body):
        return {one["name"] for tool in body.get("tools") or [] for one in tool.get("functionDeclarations") or []}

    @staticmethod
    def whole(turn):
        call = {"functionCall": {"name": turn.tool, "args": json.loads(turn.arguments or "{}")}}
        content = {"role": "model", "parts": [call if turn.tool else {"text": turn.text}]}
        return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "modelVersion": MODEL}


def _event(number, name, data):
    return f"event: {name}\ndata: {json.dumps({'type': name, 'sequence_number': number} | data)}\n\n"


def _text(content):
    """Results of tools are text, or a list of parts with text."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


APIS = {"/chat/completions": Chat, "/responses": Responses, ":generateContent": Gemini}
