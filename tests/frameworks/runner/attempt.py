"""One run of a framework's program, and what shows that its agent used a sandbox of our server."""

import json
import os
import re
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from runner.model import ScriptedModel
from runner.program import write_program

DEADLINE = 240
# What the model asks the sandbox to print: its id, and a product that stands nowhere in the script.
PROOF = re.compile(r"sandbox ([a-z0-9]{8,}) 42\b")
# The oldest versions that find a server by variables alone.
BY_VARIABLES = {"python": {"e2b": (2, 8, 0), "e2b-code-interpreter": (2, 9, 0)}, "js": {"e2b": (2, 19, 0)}}
# Frameworks report their use to their authors, and download prices of models. Here they don't.
QUIET = {"DO_NOT_TRACK": "1", "OTEL_SDK_DISABLED": "true", "HAYSTACK_TELEMETRY_ENABLED": "False", "AGNO_TELEMETRY": "false",
         "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "LANGSMITH_TRACING": "false",
         "OPENAI_AGENTS_DISABLE_TRACING": "1", "MASTRA_TELEMETRY_DISABLED": "1", "HARBOR_TELEMETRY": "off",
         "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@dataclass
class Outcome:
    """`works`, `fails`, or why it was not tried."""

    word: str
    reason: str = ""


def needs_env(framework, versions):
    """Whether the framework's SDK is too old to be told by variables where the server is."""
    oldest = BY_VARIABLES[framework.language]
    return any(_numbers(versions[name]) < oldest[name] for name in framework.sdk if name in oldest)


def attempt(framework, home, server, way):
    """Runs the program one `way`: by `env` or by `variables`."""
    file = framework.directory / "script.json"
    script = json.loads(file.read_text()) if file.exists() else []
    with tempfile.TemporaryDirectory(prefix="isopod-framework-") as place, ScriptedModel(script) as model:
        command = write_program(framework, home, Path(place))
        environment = _environment(server, way) | model.environment() | QUIET | {"HOME": place}
        if way == "env":
            command = [server.isopod, "--state-dir", str(server.state), "env", "--", *command]
        return _judge(server, model, *_run(command, environment, place))


def _environment(server, way):
    environment = server.environment()
    if way == "env":
        environment = {name: value for name, value in environment.items() if not name.startswith("E2B_")}
        # A key of E2B's cloud, as such a program has it. The server does not know it.
        environment["E2B_API_KEY"] = "e2b_" + "0" * 40
    path = [part for part in environment["PATH"].split(os.pathsep) if "pyenv/shims" not in part]
    return environment | {"PATH": os.pathsep.join(path)}


def _run(command, environment, place):
    """Returns the exit status, or None after the deadline, and everything that was printed."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = subprocess.Popen(command, env=environment, cwd=place, text=True, start_new_session=True, **streams)
    try:
        return running.communicate(timeout=DEADLINE)[0], running.returncode
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        return running.communicate()[0], None


def _judge(server, model, output, status):
    shown = PROOF.findall(output)
    if status == 0 and not model.refusals and shown and all(_is_known(server, sandbox) for sandbox in shown):
        return Outcome("works")
    if status is None:
        reason = f"did not end in {DEADLINE} s"
    elif status != 0:
        reason = f"ended with status {status}"
    elif model.refusals:
        reason = "did something else than the script expects"
    else:
        reason = "printed nothing from a sandbox of the server"
    return Outcome("fails", "\n".join([reason, *model.refusals, output[-4000:]]))


def _is_known(server, sandbox):
    """Whether the server ran that sandbox. It keeps the logs of those that have ended."""
    request = urllib.request.Request(f"{server.url}/v2/sandboxes/{sandbox}/logs", headers={"X-API-Key": server.key})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def _numbers(version):
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
