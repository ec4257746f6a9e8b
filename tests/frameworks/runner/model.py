"""A language model that follows a script, behind the HTTP APIs of OpenAI and of Gemini, on a free port of loopback.

A script is a list of turns. `{"tool": NAME, "arguments": {…}}` calls a tool, and `{"say": TEXT}` answers. In both,
`{result}` stands for what the last tool returned. With `"expect": TEXT`, the result of the tool must have that text. With
`"take": PATTERN`, what the pattern's group matches in the result is `{taken}` in later turns, and `"{number}"` as a number.
The conversation in a request says which turn is next, so it does not matter how often a framework asks.
"""

import http.server
import json
import re
import threading

from runner import wire


class ScriptedModel:
    def __init__(self, script):
        self.script = script
        self.requests = []
        self.refusals = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def environment(self):
        """OpenAI's clients, LangChain, LiteLLM, CAMEL and Google's client read these."""
        urls = {name: f"{self.address}/v1" for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_BASE_URL")}
        return urls | {"OPENAI_API_KEY": "sk-scripted", "GOOGLE_GEMINI_BASE_URL": self.address, "GOOGLE_API_KEY": "scripted"}

    def next_turn(self, conversation, offered):
        """The turn that follows a conversation. Raises ValueError if the conversation is not as the script says."""
        results = conversation.results
        number = min(len(results), len(self.script) - 1)
        turn, taken = self.script[number], self._check(results)
        if "tool" not in turn:
            return wire.Turn(text=turn["say"].replace("{result}", results[-1] if results else ""))
        if turn["tool"] not in offered:
            raise ValueError(f"the script calls {turn['tool']}, but the framework offers {sorted(offered)}")
        arguments = json.dumps(turn["arguments"]).replace('"{number}"', taken).replace("{taken}", taken)
        return wire.Turn(tool=turn["tool"], arguments=arguments, number=number)

    def _check(self, results):
        """Compares what tools returned with the script. Returns what the script takes from it for later turns."""
        taken = ""
        for turn, result in zip(self.script, results):
            found = re.search(turn.get("take") or re.escape(turn.get("expect", "")), result)
            if found is None:
                wanted = turn.get("take") or turn["expect"]
                raise ValueError(f"{turn.get('tool', 'code')} did not return {wanted!r} but {result!r}")
            taken = found[1] if "take" in turn else taken
        return taken


def _handler(model):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            model.requests.append(body)
            api = wire.of_path(self.path)
            if api is None:
                return self.refuse(404, f"no such path: {self.path}")
            try:
                turn = model.next_turn(api.conversation(body), api.offered(body))
            except ValueError as error:
                return self.refuse(400, str(error))
            if body.get("stream"):
                return self.answer(api.stream(turn).encode(), "text/event-stream")
            return self.answer(json.dumps(api.whole(turn)).encode(), "application/json")

        def do_GET(self):
            self.answer(b'{"object": "list", "data": []}', "application/json")

        def refuse(self, status, message):
            model.refusals.append(message)
            self.answer(json.dumps({"error": {"message": message}}).encode(), "application/json", status)

        def answer(self, content, kind, status=200):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    return Handler
