"""A service with OpenAI's chat completions on loopback, in the place of one that costs money. It records every request.

What it answers is set for each conversation, which is known by a text in its first question. The last turn is repeated.
"""

import http.server
import json
import select
import threading
from collections import defaultdict

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
NAME = "tiny-model"


def say(text):
    return {"role": "assistant", "content": text}


def tool(name, arguments):
    """A call of a tool. Arguments that are a text are sent as they are, also if they are no JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def refuse(status, message):
    return {"status": status, "body": {"error": {"message": message, "type": "server_error"}}}


def page(text):
    """The page of something that is no model."""
    return {"status": 200, "page": text}


#: No answer at all.
HANG = {"hang": True}
#: An answer that never ends. The client has no reason to give up by itself.
DRIP = {"drip": True}


class Endpoint:
    def __init__(self):
        self.turns = {}
        #: Headers and bodies of the requests of each conversation.
        self.requests = defaultdict(list)
        #: Set when a client has hung up in a turn that never ends.
        self.hung_up = defaultdict(threading.Event)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def script(self, text, *turns):
        self.turns[text] = turns

    def bodies(self, text):
        return [body for _, body in self.requests[text]]

    def last_result(self, text):
        """What a tool returned to the model, in its last request."""
        message = self.bodies(text)[-1]["messages"][-1]
        assert message["role"] == "tool", message
        return json.loads(message["content"])

    def next_turn(self, headers, body):
        question = body["messages"][1]["content"]
        text = next(text for text in self.turns if text in question)
        number = len(self.requests[text])
        self.requests[text].append((headers, body))
        return text, self.turns[text][min(number, len(self.turns[text]) - 1)]


def _handler(endpoint):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/chat/completions":
                return self.answer(404, {"error": {"message": f"no such path: {self.path}"}})
            text, turn = endpoint.next_turn({name.lower(): value for name, value in self.headers.items()}, body)
            if "hang" in turn or "drip" in turn:
                self.wait_for_hang_up("drip" in turn)
                return endpoint.hung_up[text].set()
            if "page" in turn:
                return self.send(turn["status"], turn["page"].encode(), "text/html")
            return self.answer(turn.get("status", 200), turn.get("body") or completion(turn))

        def do_GET(self):
            model = {"id": NAME, "object": "model", "created": 1, "owned_by": "tests"}
            self.answer(200, {"object": "list", "data": [model]})

        def wait_for_hang_up(self, drips):
            self.close_connection = True
            if drips:
                self.send(200, b"", "application/json", length=1 << 30)
            while not select.select([self.connection], [], [], 0.2)[0]:
                self.connection.sendall(b" " if drips else b"")

        def answer(self, status, body):
            self.send(status, json.dumps(body).encode(), "application/json")

        def send(self, status, content, kind, length=None):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length or len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    return Handler


def completion(message):
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "chat_1", "object": "chat.completion", "created": 1, "model": NAME, "choices": [choice], "usage": USAGE}
