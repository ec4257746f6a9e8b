"""What the cases use: the server of the README, an agent service on the port that the server knows, and the model behind it."""

import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from places import EXAMPLE, ROOT
from harness.server import Server

DEADLINE = 60
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Search:
    """A search service as SearXNG is one, which finds the same page for everything."""

    def __init__(self):
        self.queries = []
        search = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                search.queries += urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["q"]
                found = {"title": "Isopods", "url": "https://isopods.example/", "content": "They eat wood."}
                content = json.dumps({"results": [found]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/search"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class ReadmeServer(Server):
    """`isopod serve`, started by the words of the README. Variables make it listen on free ports, with its own files, and use a
    search service of the tests."""

    def __init__(self, isopod, words, clone, agent_port):
        super().__init__(isopod)
        self.words = words
        self.search = Search()
        settings = self.home / "isopod.toml"
        settings.write_text(f'[tools.search]\nurl = "{self.search.url}"\n')
        self.variables = {
            "ISOPOD_CONFIG": str(settings),
            "PATH": f"{clone / 'bin'}:{os.environ['PATH']}",
            "ISOPOD_STATE_DIR": str(self.state),
            "ISOPOD_LISTEN": f"127.0.0.1:{self.port}",
            "ISOPOD_API_KEY": self.key,
            "AGENT_PORT": str(agent_port),
            # `isopod env` prints its variables for this shell.
            "SHELL": "/bin/bash",
        }

    def command(self):
        return ["bash", "-c", self.words]

    def stop(self):
        problems = super().stop()
        self.search.stop()
        return problems

    def shell(self):
        """The variables of a terminal of the reader, in which nothing was pasted yet."""
        clean = {name: value for name, value in super().environment().items() if not name.startswith(("E2B_", "OPENAI_"))}
        return clean | self.variables | {"PYTHONUNBUFFERED": "1"}


class Service:
    """An agent service in a process of its own."""

    def __init__(self, command, place, environment, port):
        self.url = f"http://127.0.0.1:{port}"
        self.redis_url = environment.get("REDIS_URL")
        self.log = place / "service.log"
        with open(self.log, "wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True, **streams)

    def __enter__(self):
        wait_until(lambda: self._is_up(), lambda: f"the agent service did not start:\n{self.log.read_text()}")
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(DEADLINE)
        finally:
            self.process.kill()

    def _is_up(self):
        assert self.process.poll() is None, f"the agent service ended:\n{self.log.read_text()}"
        try:
            # Any answer will do: the smallest service has no such route.
            return bool(call(f"{self.url}/health"))
        except OSError:
            return False

    def cleanups(self, run_id):
        """How often the server has told it that the run is over."""
        return self.log.read_text().count(f"DELETE /runtime/{run_id}/cleanup")


def openai_service(server, venv, place, endpoint, port):
    """The service with a model behind OpenAI's API, and with the address of a Redis that only a case about it starts."""
    model = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "sk-tests", "MODEL": "tiny-model"}
    redis = {"REDIS_URL": f"redis://:p%40ss%20word@127.0.0.1:{free_port()}/0"}
    limits = {"MODEL_TIMEOUT": "3", "MODEL_RETRIES": "0"}
    known = server.shell() | {"E2B_API_KEY": server.key, "E2B_API_URL": server.url, "PYTHONPATH": str(ROOT / "python")}
    command = [str(venv / "bin" / "python"), str(EXAMPLE / "service.py")]
    return Service(command, place, known | model | limits | redis, port)


class Lab:
    def __init__(self, server, service, endpoint):
        self.server = server
        self.service = service
        self.endpoint = endpoint

    def api(self, method, path, body=None):
        return call(f"{self.server.url}{path}", method, body, {"X-API-Key": self.server.key})

    def ask_service(self, method, path, body=None):
        return call(f"{self.service.url}{path}", method, body)

    def start(self, *nodes, **settings):
        status, started = self.api("POST", "/runtime/start", {"nodes": list(nodes)} | settings)
        assert status == 200, started
        return started["run_id"]

    def state(self, run_id):
        return self.api("GET", f"/runtime/state?run_id={run_id}")[1]

    def run(self, *nodes, **settings):
        """Runs a workflow to its end, and checks that its sandbox is gone and that the service was told once."""
        return self.ended(self.start(*nodes, **settings))

    def ended(self, run_id):
        wait_until(lambda: self.state(run_id)["cleaned_up"], lambda: f"{self.state(run_id)}\n{self.service.log.read_text()}")
        state = self.state(run_id)
        services = [(service["url"], service["cleanup"]) for service in state["agent_services"]]
        assert services == [(None, "done")], state["agent_services"]
        assert self.service.cleanups(run_id) == 1, self.service.log.read_text()
        assert self.api("GET", "/v2/sandboxes") == (200, []), state
        return state

    def failed(self, *nodes, **settings):
        """The error of a run's only node, which fails."""
        state = self.run(*nodes, **settings)
        assert (state["status"], state["reason"]) == ("failed", "node_failed"), state
        return node(state, nodes[-1]["id"])["error"]


def agent(prompt, **fields):
    """A node for the agent service."""
    return {"id": "agent", "prompt": prompt} | fields


def node(state, name):
    return next(node for node in state["nodes"] if node["id"] == name)


def call(url, method="GET", body=None, headers=None):
    """The status and the JSON of a reply."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | (headers or {})
    request = urllib.request.Request(url, method=method, data=data, headers=headers)
    try:
        with OPENER.open(request, timeout=DEADLINE) as response:
            return response.status, json.loads(response.read() or "null")
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read() or "null")


def wait_until(holds, explain):
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
