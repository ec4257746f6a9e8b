#!/usr/bin/env python3
"""An upgrade: everything that a server of an earlier commit has goes on under the new one.

    python3 tests/upgrade/run.py --isopod target/debug/isopod [--older COMMIT_OR_PROGRAM]... [--by kill stop] [--only TEXT]...

The older server gets sandboxes that run, are paused, hold a kernel, belong to a run or stand on a built template, through the
official SDK. If it can save memory (ISOPOD_CRIU), it also saves some. Then it is killed or stopped, and the new one is started on
the same state directory. The programs of the commits below, or of those that --older names, are built from the history, which takes
some minutes once for each. Needs root, git and Rust.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "sdk"))

from harness.packages import _once, cache_root, python_of  # noqa: E402
from harness.server import SAVING, Server  # noqa: E402

# Earlier commits, because there is no release yet.
OLDER = [
    # The first one whose records a server must understand.
    "56007819f2742078a188f3a0e7e1ca1cafe5058a",
    # The last one before fragments, live output and the views of the database.
    "d498b8824940c2750a454563e7ea71f0f4fe63da",
    # One that saves memory, from before pauses outlived power cuts.
    "e7e8237364d219e76716bedbd0248a21fe8b0488",
]
SDK_VERSION = "2.11.5"
INTERPRETER = "code-interpreter-v1"
LIFETIME = 3600


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path)
    parser.add_argument("--older", action="append", help="a commit, or the path of a finished program")
    parser.add_argument("--by", choices=["kill", "stop"], nargs="+", default=["kill", "stop"])
    parser.add_argument("--only", action="append", default=[], help="upgrades whose name, such as `d498b8824940 kill`, has this text")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the suite makes real sandboxes and must run as root")
    enter_environment_of_the_sdk()
    chosen = [(older, way) for older in options.older or OLDER for way in options.by if is_chosen(name_of(older, way), options.only)]
    if not chosen:
        sys.exit(f"no upgrade has {' or '.join(options.only)} in its name")
    problems = []
    for older, way in chosen:
        name = name_of(older, way)
        problems += [f"{name}: {problem}" for problem in upgrade(program_of(older), options.isopod.resolve(), way, name)]
    if problems:
        sys.exit("\n".join(problems))


def name_of(older, way):
    return f"{Path(older).name[:12]} {way}"


def is_chosen(name, only):
    return not only or any(text in name for text in only)


def enter_environment_of_the_sdk():
    """Restarts this program with the Python that has the SDK."""
    python = python_of(SDK_VERSION, "e2b-code-interpreter")
    if Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), *sys.argv])


def program_of(older):
    """The program of a commit, or the one at that path."""
    return Path(older).resolve() if os.path.isfile(older) else built(older)


def built(commit):
    """The program, built from the history of this repository, and cached."""
    home = cache_root().parent / f"older-{commit[:12]}"

    def build():
        print(f"building the program of {commit[:12]}", flush=True)
        sources, target = home / "sources", home / "target"
        sources.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "--extract", "--directory", str(sources)], input=archive, check=True)
        environment = os.environ | {"CARGO_TARGET_DIR": str(target), "CARGO_INCREMENTAL": "0"}
        subprocess.run(["cargo", "build", "--quiet", "--locked", "--package", "isopod"], cwd=sources, env=environment, check=True)
        shutil.copy(target / "debug" / "isopod", home / "isopod")
        shutil.rmtree(sources)
        shutil.rmtree(target)

    _once(home, build)
    return home / "isopod"


class OwnServer(Server):
    """Its templates are its own: those of the older version are part of what must keep working."""

    # Older programs answer 204.
    HEALTHY = (200, 204)

    def usual_options(self):
        """A program gets only options that it knows."""
        help = subprocess.run([self.isopod, "serve", "--help"], check=True, capture_output=True, text=True).stdout
        self.saves_memory = self.saves_memory and SAVING in help
        return super().usual_options()

    def _share_templates(self):
        self.state.mkdir(parents=True, exist_ok=True)

    def replace(self, isopod, way):
        """Ends the server, and starts the other program on the same state directory and port."""
        if way == "kill":
            self.process.kill()
            self.process.wait()
        elif problems := self._terminate():
            raise RuntimeError("\n".join(problems))
        self.log.close()
        (self.home / "serve.log").rename(self.home / "older.log")
        self.isopod = str(isopod)
        self.saves_memory = bool(os.environ.get("ISOPOD_CRIU"))
        self.options = self.usual_options()
        self.start()

    def ask(self, method, path, body=None):
        headers = {"X-API-Key": self.key, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=headers)
        with self._opener().open(request, timeout=120) as answer:
            text = answer.read()
            return json.loads(text) if text else None


def upgrade(older, newer, way, name):
    """Upgrades from the program `older`, in the way and with the name that are given. Returns a list of errors."""
    server = OwnServer(older, prepare=INTERPRETER)
    problems = []
    try:
        server.start()
        server.wait_for_template(INTERPRETER)
        os.environ.update(server.environment())
        cases = [case(server) for case in CASES + ([Saved] if server.saves_memory else [])]
        for case in cases:
            case.before()
        server.replace(newer, way)
        for case in cases:
            try:
                case.after()
                print(f"ok {name} {type(case).__name__}", flush=True)
            except Exception as error:
                problems.append(f"{type(case).__name__}: {error!r}")
    except Exception as error:
        problems.append(f"{error!r}\n{server.tail()}")
    finally:
        problems += server.stop()
    return problems


class Case:
    """Something that the older server creates and the new one must have."""

    def __init__(self, server):
        self.server = server


class Running(Case):
    """A command goes on printing, and a client that comes back gets the rest; files, metadata and the timeout stay."""

    def before(self):
        from e2b_code_interpreter import Sandbox

        self.sandbox = Sandbox.create("base", timeout=LIFETIME, metadata={"who": "runs"}, envs={"KEPT": "yes"})
        self.sandbox.files.write("note.txt", "written before")
        program = "i=0; while [ ! -e /tmp/enough ]; do echo $i; i=$((i+1)); sleep 0.05; done"
        self.command = self.sandbox.commands.run(program, background=True, timeout=0)
        self.heard = ""
        for out, _, _ in self.command:
            self.heard += out or ""
            if self.heard.count("\n") >= 5:
                break
        self.end = self.sandbox.get_info().end_at

    def after(self):
        from e2b_code_interpreter import Sandbox, SandboxQuery

        [listed] = Sandbox.list(query=SandboxQuery(metadata={"who": "runs"})).next_items()
        assert listed.sandbox_id == self.sandbox.sandbox_id, listed
        assert listed.end_at == self.end, (listed.end_at, self.end)
        # What the old stream has still got comes first.
        try:
            for out, _, _ in self.command:
                self.heard += out or ""
        except Exception:
            pass
        joined = self.sandbox.commands.connect(self.command.pid, timeout=60)
        self.sandbox.files.write("/tmp/enough", "")
        self.heard += "".join(out or "" for out, _, _ in joined)
        numbers = self.heard.split()
        assert numbers == [str(number) for number in range(len(numbers))], numbers
        assert self.sandbox.files.read("note.txt") == "written before"
        assert self.sandbox.commands.run("echo $KEPT").stdout == "yes\n"
        assert self.sandbox.kill() and not self.sandbox.is_running()


class Paused(Case):
    """A sandbox that was paused with its memory resumes with its processes."""

    def before(self):
        from e2b_code_interpreter import Sandbox

        self.sandbox = Sandbox.create("base", timeout=LIFETIME)
        self.pid = self.sandbox.commands.run("sleep 3600", background=True, timeout=0).pid
        self.sandbox.pause()

    def after(self):
        from e2b_code_interpreter import Sandbox, SandboxQuery, SandboxState

        paused = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
        assert self.sandbox.sandbox_id in [one.sandbox_id for one in paused], paused
        resumed = self.sandbox.connect()
        assert self.pid in [process.pid for process in resumed.commands.list()]
        resumed.kill()


class Kernel(Case):
    """Variables of a code interpreter stay, and a new context can be made beside the old one."""

    def before(self):
        from e2b_code_interpreter import Sandbox

        self.sandbox = Sandbox.create(timeout=LIFETIME)
        self.sandbox.run_code("x = 41")

    def after(self):
        assert self.sandbox.run_code("x + 1").text == "42"
        context = self.sandbox.create_code_context()
        assert self.sandbox.run_code("'x' in globals()", context=context).text == "False"
        self.sandbox.kill()


class Run(Case):
    """A run keeps its sandbox with what was computed in it, and its cleanup ends it."""

    def before(self):
        self.sandbox = self.execute("y = 20")["sandbox_id"]

    def after(self):
        done = self.execute("y * 2 + 2")
        assert (done["sandbox_id"], done["restarted"]) == (self.sandbox, False), done
        assert done["output"]["results"][0]["text"] == "42", done
        cleaned = self.server.ask("DELETE", "/runtime/upgraded/cleanup")
        assert cleaned["killed"], cleaned

    def execute(self, code):
        done = self.server.ask("POST", "/runtime/upgraded/execute", {"code": code})
        assert done["success"], done
        return done


class Workspace(Case):
    """The workspace is mounted again; what was written there is there, inside and for a new sandbox."""

    FOLDER = "/opt/sentient/executions/upgraded"

    def before(self):
        self.sandbox = self.create()
        self.sandbox.files.write(f"{self.FOLDER}/before.txt", "kept")

    def after(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                assert self.sandbox.commands.run(f"cat {self.FOLDER}/before.txt").stdout == "kept"
                break
            except Exception:
                # The mount comes back by itself.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        self.sandbox.files.write(f"{self.FOLDER}/after.txt", "new")
        self.sandbox.kill()
        other = self.create()
        assert {other.files.read(f"{self.FOLDER}/{name}.txt") for name in ("before", "after")} == {"kept", "new"}
        other.kill()

    def create(self):
        from e2b_code_interpreter import Sandbox

        return Sandbox.create("base", timeout=LIFETIME, metadata={"execution_id": "upgraded"})


class Built(Case):
    """A template that was built stays, with the sandbox that stands on it."""

    def before(self):
        from e2b import Template
        from e2b_code_interpreter import Sandbox

        Template.build(Template().from_template("base").run_cmd("echo built > /home/user/made"), alias="upgraded")
        self.sandbox = Sandbox.create("upgraded", timeout=LIFETIME)

    def after(self):
        from e2b_code_interpreter import Sandbox

        another = Sandbox.create("upgraded", timeout=LIFETIME)
        for sandbox in (self.sandbox, another):
            assert sandbox.files.read("/home/user/made") == "built\n"
            sandbox.kill()


class Saved(Case):
    """The older server has saved the memory of a snapshot and of a paused sandbox, and the new one restores both."""

    # Answers how often it was asked, and remembers that only in its memory.
    COUNTER = "mkfifo /tmp/ask /tmp/answer; n=0; while read _ < /tmp/ask; do n=$((n+1)); echo $n > /tmp/answer; done"

    def before(self):
        from e2b_code_interpreter import Sandbox

        self.sandbox = Sandbox.create("base", timeout=LIFETIME)
        self.sandbox.commands.run(self.COUNTER, background=True, timeout=0)
        self.sandbox.commands.run("until [ -p /tmp/answer ]; do sleep 0.05; done")
        assert self.count(self.sandbox) == "1"
        self.snapshot = self.sandbox.create_snapshot().snapshot_id
        assert self.count(self.sandbox) == "2"
        self.sandbox.pause()
        deadline = time.monotonic() + 60
        while self.state() != "saved":
            assert time.monotonic() < deadline, f"its memory is not saved: {self.state()}"
            time.sleep(0.1)

    def after(self):
        from e2b_code_interpreter import Sandbox

        assert self.state() == "saved", self.state()
        resumed = self.sandbox.connect()
        assert self.count(resumed) == "3"
        copy = Sandbox.create(self.snapshot, timeout=LIFETIME)
        assert self.count(copy) == "2"
        resumed.kill()
        copy.kill()
        assert Sandbox.delete_snapshot(self.snapshot)

    def count(self, sandbox):
        return sandbox.commands.run("echo > /tmp/ask; cat /tmp/answer", timeout=60).stdout.strip()

    def state(self):
        """As its record says, because clients cannot tell whether memory is on disk."""
        records = [json.loads(file.read_text()) for file in self.server.state.glob("homes/serve/boxes/*/record.json")]
        own = [one for one in records if (one.get("spec") or {}).get("sandbox") == self.sandbox.sandbox_id and not one.get("snapshot")]
        [record] = own
        return record["state"]


CASES = [Running, Paused, Kernel, Run, Workspace, Built]


if __name__ == "__main__":
    main()
