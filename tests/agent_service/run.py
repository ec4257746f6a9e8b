#!/usr/bin/env python3
"""The agent service of examples/agent-service: first by the words of its README, then with a model that makes mistakes.

    python3 tests/agent_service/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, redis-server, and pip for the first run: the packages are kept in ~/.cache/isopod/sdk. Afterwards nothing of the
server may be left on the host.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readme  # noqa: E402
from cases import CASES  # noqa: E402
from endpoint import Endpoint  # noqa: E402
from lab import Lab, ReadmeServer, Service, free_port, node, openai_service  # noqa: E402
from places import EXAMPLE, ROOT, clone, environment_with_packages  # noqa: E402

TEMPLATE = "code-interpreter-v1"
PAGE = ROOT / "docs" / "agent-service.md"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    options = parser.parse_args()
    isopod, results = options.isopod.resolve(), Results(options.only)
    install, serve, start, workflow, plan = readme.blocks()
    venv, port = environment_with_packages(readme.words(install)), free_port()
    with tempfile.TemporaryDirectory(prefix="isopod-agents-") as place:
        place = Path(place)
        clone(place, venv, isopod)
        server = ReadmeServer(isopod, readme.words(serve), place, port)
        try:
            server.start()
            server.wait_for_template(TEMPLATE)
            results.check("what_is_missing_is_said_at_the_start", lambda: what_is_missing_is_said_at_the_start(server, venv))
            results.check("the_readme", lambda: the_readme(server, place, port, readme.words(start), [*workflow, *plan]))
            results.check("the_page", lambda: the_page(server, venv, place, port))
            with Endpoint() as endpoint, openai_service(server, venv, place, endpoint, port) as service:
                for case in CASES:
                    results.check(case.__name__, lambda: case(Lab(server, service, endpoint)))
        except Exception:
            results.problems.append(f"the run broke off:\n{traceback.format_exc()}{server.tail()}")
        finally:
            results.problems += server.stop()
    results.end()


def the_readme(server, place, port, start, commands):
    """All commands of the page in their order: the service in one shell, workflow and plan in another."""
    with Service(["bash", "-c", start], place, server.shell(), port) as service:
        readme.run(commands, place, server.shell())
        lab = Lab(server, service, None)
        runs = lab.api("GET", "/runtime/runs")[1]
        assert len(runs) == 2, runs
        for run in runs:
            lab.ended(run["run_id"])


def the_page(server, venv, place, port):
    """The program and the workflow of docs/agent-service.md. Its service has no route for cleanups."""
    program, workflow = (re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1] for kind in ("python", "yaml"))
    known = {"E2B_API_KEY": server.key, "E2B_API_URL": server.url, "PYTHONPATH": str(ROOT / "python")}
    with Service([str(venv / "bin" / "python"), "-c", program], place, server.shell() | known, port) as service:
        (place / "counter.yaml").write_text(workflow)
        command = ["isopod", "run-workflow", "counter.yaml", "--json"]
        done = subprocess.run(command, cwd=place, env=server.shell() | known, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        state = Lab(server, service, None).ended(json.loads(done.stdout.splitlines()[-1])["run_id"])
        assert node(state, "counter")["output"] == {"result": "10 lines"}, state


def what_is_missing_is_said_at_the_start(server, venv):
    def start(**variables):
        command = [str(venv / "bin" / "python"), str(EXAMPLE / "service.py")]
        environment = server.shell() | {"PYTHONPATH": str(ROOT / "python")} | variables
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    starts = {
        'eval "$(isopod env)"': start(),
        "MODEL and OPENAI_API_KEY": start(E2B_API_KEY="e2b_x", MODEL="m"),
        "no-such-file": start(E2B_API_KEY="e2b_x", AGENT_SCRIPT="no-such-file"),
    }
    for hint, process in starts.items():
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1 and hint in said and "Traceback" not in said, said


class Results:
    def __init__(self, only):
        self.only = only
        self.passed = 0
        self.problems = []

    def check(self, name, work):
        if self.only and not any(text in name for text in self.only):
            return
        try:
            work()
        except Exception:
            print(f"FAILED {name}", flush=True)
            self.problems.append(f"{name}:\n{traceback.format_exc()}")
        else:
            print(f"ok {name}", flush=True)
            self.passed += 1

    def end(self):
        print(f"{self.passed} passed, {len(self.problems)} failed")
        if self.problems:
            sys.exit("\n".join(self.problems))


if __name__ == "__main__":
    main()
