"""A client that writes lines itself: for what an SDK would not do, and for how the program ends."""

import json
import signal
import subprocess

import api

INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}


class Session:
    def __init__(self, server, *options):
        command = [server.isopod, "mcp", *options]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=server.environment(), **streams)
        self.id = 0

    def __enter__(self):
        self.request("initialize", INITIALIZE)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def send(self, message):
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def start(self, method, params):
        self.id += 1
        self.send({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params})
        return self.id

    def request(self, method, params):
        return self.answer(self.start(method, params))

    def answer(self, wanted):
        """The answer to this request. Notifications before it are passed over."""
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == wanted:
                return message
        raise AssertionError(f"it ended: {self.process.communicate()}")

    def call(self, name, **arguments):
        return self.request("tools/call", {"name": name, "arguments": arguments})["result"]

    def sandbox(self):
        return self.call("run_command", command="true")["structuredContent"]["sandbox"]

    def ended(self):
        output, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 0 and not errors, (self.process.returncode, errors)
        return output


def a_closed_input_removes_the_sandbox_and_ends_a_running_command(server):
    with Session(server) as session:
        sandbox = session.sandbox()
        session.start("tools/call", {"name": "run_command", "arguments": {"command": "sleep 1000"}})
        session.ended()
        assert sandbox not in api.sandboxes(server.environment())


def sigterm_removes_the_sandbox(server):
    with Session(server) as session:
        sandbox = session.sandbox()
        session.process.send_signal(signal.SIGTERM)
        assert session.process.wait(20) == 0
        assert sandbox not in api.sandboxes(server.environment())


def a_client_that_leaves_during_the_first_create_leaves_no_sandbox(server):
    before = api.sandboxes(server.environment())
    with Session(server) as session:
        session.start("tools/call", {"name": "run_command", "arguments": {"command": "true"}})
        session.ended()
    assert api.sandboxes(server.environment()) <= before


def after_kill_9_the_sandbox_ends_at_its_timeout(server):
    with Session(server, "--timeout", "4") as session:
        sandbox = session.sandbox()
        # It is kept alive until then, for longer than the timeout: three extensions are seen.
        ends = set()
        api.until(lambda: ends.add(end_of(server, sandbox)) or len(ends) > 3, "its end moves on")
        session.process.kill()
        session.process.wait()
        api.until_gone(sandbox, server.environment())


def end_of(server, sandbox):
    return api.request(f"/sandboxes/{sandbox}", variables=server.environment())["endAt"]


def without_a_server_tools_are_listed_and_calls_say_what_is_wrong(server):
    variables = server.environment() | {"E2B_API_URL": "http://127.0.0.1:1", "E2B_SANDBOX_URL": "http://127.0.0.1:1"}

    class Elsewhere:
        isopod = server.isopod

        @staticmethod
        def environment():
            return variables

    with Session(Elsewhere) as session:
        assert session.request("tools/list", {})["result"]["tools"]
        result = session.call("run_command", command="true")
        assert result["isError"] and "Hint: " in result["content"][0]["text"], result


def without_a_key_it_says_so(server):
    variables = {name: value for name, value in server.environment().items() if name != "E2B_API_KEY"}
    done = subprocess.run([server.isopod, "mcp"], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 125 and "hint:" in done.stderr and not done.stdout, done


def nonsense_does_not_end_the_session(server):
    with Session(server) as session:
        for line in [b"nonsense\n", b"\xff\xfe\n", b"\n", b"[]\n", b'{"jsonrpc": "2.0"}\n', b"{" * 10_000 + b"\n"]:
            session.write(line)
        assert session.request("ping", {})["result"] == {}
        error = session.request("tools/call", {"name": "no_such_tool", "arguments": {}})["error"]
        assert error["code"] == -32602 and "no_such_tool" in error["message"], error
        for bad in [{"name": "run_command"}, {"name": "run_command", "arguments": {"command": 7}},
                    {"name": "run_command", "arguments": {"command": "true", "comand": "x"}},
                    {"name": "run_code", "arguments": {"code": "1", "sandbox": "../x"}},
                    {"name": "run_code", "arguments": {"code": "1", "sandbox": "i1", "session": "s"}}]:
            result = session.request("tools/call", bad)["result"]
            assert result["isError"] and "Error: " in result["content"][0]["text"], result
        session.ended()


def limits_are_said(server):
    with Session(server, "--max-sandboxes", "2", "--max-output", "2000") as session:
        session.sandbox()
        assert "sandbox" in session.call("create_sandbox")["structuredContent"]
        third = session.call("create_sandbox")
        assert third["isError"] and "2 sandboxes" in third["content"][0]["text"], third
        result = session.call("run_command", command="seq 100000; seq 100000 >&2")
        text, found = result["content"][0]["text"], result["structuredContent"]
        assert found["truncated"] and len(text) < 5000 and "bytes are left out" in text, len(text)
        assert found["stdout"].startswith("1\n2\n") and found["stdout"].endswith("99999\n100000\n"), found
        session.ended()


def tools_do_not_reach_sandboxes_of_others(server):
    with Session(server) as one, Session(server) as other, Session(server, "--all-sandboxes") as all_of_them:
        sandbox = one.sandbox()
        refused = other.call("kill_sandbox", sandbox=sandbox)
        assert refused["isError"] and sandbox in refused["content"][0]["text"], refused
        assert other.call("list_sandboxes")["structuredContent"] == {"sandboxes": []}
        assert sandbox in str(all_of_them.call("list_sandboxes")["structuredContent"])
        assert not all_of_them.call("run_command", command="true", sandbox=sandbox)["isError"]
        all_of_them.ended()
        assert sandbox in api.sandboxes(server.environment()), "what others created stays"
        for session in (one, other):
            session.ended()


def a_sandbox_that_ended_is_said_and_replaced(server):
    with Session(server) as session:
        sandbox = session.sandbox()
        api.kill(sandbox, server.environment())
        lost = session.call("run_command", command="true")
        assert lost["isError"] and sandbox in lost["content"][0]["text"], lost
        assert session.sandbox() != sandbox
        session.ended()


CASES = [
    a_closed_input_removes_the_sandbox_and_ends_a_running_command,
    sigterm_removes_the_sandbox,
    a_client_that_leaves_during_the_first_create_leaves_no_sandbox,
    after_kill_9_the_sandbox_ends_at_its_timeout,
    without_a_server_tools_are_listed_and_calls_say_what_is_wrong,
    without_a_key_it_says_so,
    nonsense_does_not_end_the_session,
    limits_are_said,
    tools_do_not_reach_sandboxes_of_others,
    a_sandbox_that_ended_is_said_and_replaced,
]
