"""The rounds of the memory suite. See run.py."""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from harness.server import Server
from model import Content, Known

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "snapshots.md"
BEGIN, END = "<!-- rounds -->\n", "<!-- /rounds -->"
PORT = 8000
MOST_SANDBOXES, MOST_SNAPSHOTS = 5, 4
LIFE = 3000
# Seconds after which the memory of a paused sandbox goes to disk.
SAVED_AFTER = 1
# So that much of what is used is packed, or is being packed.
PACKED_AFTER = 1
# A kill of the server hits a call in its first steps, in its last ones, or right after it: most calls take 10 to 150 ms.
KILL_WITHIN = 0.15


class Difference(Exception):
    """Something is not as it must be."""


@dataclass
class Call:
    """One that is interrupted."""

    name: str
    make: Callable
    # The sandbox that it is about, and what comes of it has.
    known: Known = None
    content: Content = None
    # The snapshot that it deletes.
    snapshot: str = None


class Rounds:
    def __init__(self, server, seed, admin=None):
        # Imported late: the SDK reads its address from the environment.
        from e2b import Sandbox

        self.sdk, self.server, self.random = Sandbox, server, random.Random(seed)
        # For the calls that are interrupted.
        self.admin = admin
        self.sandboxes, self.done, self.next = {}, Counter(), 0
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def play(self):
        """One round: an action, numbers for some sandboxes, and a look at all of them."""
        action = self.choose()
        self.done[action.__name__] += 1
        told = action()
        for known in self.running():
            if self.random.random() < 0.5:
                self.add(known)
        self.check()
        return f"{action.__name__.replace('_', ' ')}{f' ({told})' if told else ''}"

    def choose(self):
        options = {self.create: 1 if len(self.sandboxes) < 2 else 0, self.kill_the_server: 2, self.kill_the_server_during_a_call: 5}
        if self.running():
            options |= {self.pause: 3, self.snapshot: 3, self.fork: 3 if len(self.sandboxes) < MOST_SANDBOXES else 0}
        if self.paused():
            options |= {self.resume: 4, self.save_and_resume: 3}
        if self.kept():
            options |= {self.rollback: 4 if self.can_roll_back() else 0, self.delete_snapshot: 1}
            options[self.create_from_snapshot] = 3 if len(self.sandboxes) < MOST_SANDBOXES else 0
        if len(self.sandboxes) > 1:
            options[self.kill] = 1 if len(self.sandboxes) < MOST_SANDBOXES else 4
        return self.random.choices(list(options), list(options.values()))[0]

    def running(self):
        return [known for known in self.sandboxes.values() if not known.is_paused]

    def paused(self):
        return [known for known in self.sandboxes.values() if known.is_paused]

    def kept(self):
        """Snapshots with their sources."""
        return [(known, id) for known in self.sandboxes.values() for id in known.snapshots]

    def can_roll_back(self):
        return [(known, id) for known, id in self.kept() if not known.is_paused]

    # Actions

    def create(self):
        sandbox = self.sdk.create("base", timeout=LIFE)
        sandbox.files.write("keeper.py", (HERE / "keeper.py").read_text())
        sandbox.commands.run("python3 keeper.py", background=True, timeout=0)
        state = self.until_it_answers(sandbox.sandbox_id)
        self.sandboxes[sandbox.sandbox_id] = Known(sandbox.sandbox_id, Content.first(state))

    def pause(self):
        known = self.random.choice(self.running())
        self.sdk.pause(known.id)
        known.is_paused = True

    def resume(self):
        known = self.random.choice(self.paused())
        self.sdk.connect(known.id, timeout=LIFE)
        known.is_paused = False

    def save_and_resume(self):
        """Resumes from disk."""
        known = self.random.choice(self.paused())
        deadline = time.monotonic() + 30
        while not self.is_saved(known.id):
            if time.monotonic() > deadline:
                raise Difference(f"the memory of {known.id} was not saved:\n{self.server.tail()}")
            time.sleep(0.05)
        self.sdk.connect(known.id, timeout=LIFE)
        known.is_paused = False

    def snapshot(self):
        known = self.random.choice(self.running())
        while len(self.kept()) >= MOST_SNAPSHOTS:
            self.delete_snapshot()
        taken = self.sdk.connect(known.id, timeout=LIFE).create_snapshot()
        known.snapshots[taken.snapshot_id] = known.content

    def delete_snapshot(self):
        known, id = self.random.choice(self.kept())
        if self.sdk.delete_snapshot(id) is not True:
            raise Difference(f"snapshot {id} was not there")
        del known.snapshots[id]

    def create_from_snapshot(self):
        known, id = self.random.choice(self.kept())
        copy = self.sdk.create(id, timeout=LIFE)
        self.sandboxes[copy.sandbox_id] = Known(copy.sandbox_id, known.snapshots[id])

    def fork(self):
        known = self.random.choice(self.running())
        count = self.random.randint(1, MOST_SANDBOXES + 1 - len(self.sandboxes))
        copies = self.sdk.connect(known.id, timeout=LIFE).fork(timeout=LIFE, count=count)
        for copy in copies:
            if isinstance(copy, Exception):
                raise copy
            self.sandboxes[copy.sandbox_id] = Known(copy.sandbox_id, known.content)
        return count

    def rollback(self):
        known, id = self.random.choice(self.can_roll_back())
        self.ask("POST", f"/sandboxes/{known.id}/rollback", {"snapshotID": id})
        known.content = known.snapshots[id]

    def kill(self):
        known = self.random.choice(list(self.sandboxes.values()))
        for id in list(known.snapshots):
            self.sdk.delete_snapshot(id)
        if self.sdk.kill(known.id) is not True:
            raise Difference(f"{known.id} was gone")
        del self.sandboxes[known.id]

    def kill_the_server(self):
        self.server.kill()
        self.server.launch()

    def kill_the_server_during_a_call(self):
        """What was acknowledged before is there. What was not either happened as a whole or not at all."""
        call = self.a_call()
        answers = []

        def act():
            with contextlib.suppress(Exception):
                answers.append(call.make())

        thread = threading.Thread(target=act)
        delay = self.random.random() ** 2 * KILL_WITHIN
        thread.start()
        time.sleep(delay)
        self.server.kill()
        thread.join()
        self.server.launch()
        self.find_out(call, answers)
        return f"{call.name} after {delay * 1000:.0f} ms{', which had answered' if answers else ''}"

    def a_call(self):
        """A call to be interrupted."""
        running, paused = self.running(), self.paused()
        options = [Call("drain", lambda: self.ask("POST", "/isopod/node/drain", {}, key=self.admin))]
        if running:
            known = self.random.choice(running)
            path, body = f"/sandboxes/{known.id}", {"count": 2, "timeout": LIFE}
            options += [
                Call("pause", lambda: self.sdk.pause(known.id), known),
                Call("snapshot", lambda: self.ask("POST", f"{path}/snapshots", {}), known, known.content),
                Call("fork", lambda: self.ask("POST", f"{path}/fork", body), known, known.content),
            ]
        if self.can_roll_back():
            source, id = self.random.choice(self.can_roll_back())
            body_of_it = {"snapshotID": id}
            options.append(Call("rollback", lambda: self.ask("POST", f"/sandboxes/{source.id}/rollback", body_of_it), source))
        if paused:
            frozen = self.random.choice(paused)
            options.append(Call("resume", lambda: self.sdk.connect(frozen.id, timeout=LIFE), frozen))
        if self.kept():
            origin, kept = self.random.choice(self.kept())
            new, path_of_it = {"templateID": kept, "timeout": LIFE}, f"/templates/{urllib.parse.quote(kept, safe='')}"
            options += [
                Call("create from snapshot", lambda: self.ask("POST", "/v2/sandboxes", new), origin, origin.snapshots[kept]),
                Call("delete snapshot", lambda: self.ask("DELETE", path_of_it), origin, snapshot=kept),
            ]
        return self.random.choice(options)

    # Checks

    def find_out(self, call, answers):
        """Adopts what an interrupted call has done."""
        name, known = call.name, call.known
        listed = self.listed()
        if name == "create from snapshot" and answers and answers[0]["sandboxID"] not in listed:
            raise Difference(f"a create had answered, and {answers[0]['sandboxID']} is not there:\n{self.server.tail()}")
        for id in listed.keys() - self.sandboxes.keys():
            if name not in ("fork", "create from snapshot"):
                raise Difference(f"sandbox {id} came from an interrupted {name}")
            # The client may never have heard of it.
            self.compare(id, call.content)
            self.sdk.kill(id)
        for id in self.snapshots() - {id for _, id in self.kept()}:
            if name != "snapshot":
                raise Difference(f"snapshot {id} came from an interrupted {name}")
            self.try_snapshot(id, call.content)
            self.sdk.delete_snapshot(id)
        if name == "delete snapshot":
            self.find_out_whether_deleted(call, answers)
        if name == "drain" and answers:
            self.check_drained(answers[0])
        if name in ("pause", "resume") and known.id in listed:
            known.is_paused = listed[known.id] == "paused"
        if name == "rollback":
            found = self.until_it_answers(known.id)
            known.content = next((c for c in known.snapshots.values() if not c.differences(found)), known.content)

    def find_out_whether_deleted(self, call, answers):
        if call.snapshot not in self.snapshots():
            del call.known.snapshots[call.snapshot]
        elif answers:
            raise Difference(f"snapshot {call.snapshot} is there after its deletion was answered:\n{self.server.tail()}")
        else:
            self.try_snapshot(call.snapshot, call.known.snapshots[call.snapshot])

    def check_drained(self, report):
        """A restart ends a drain, so the next rounds create and resume. What it had saved stays on disk."""
        in_ram = report["notSaved"] or [known.id for known in self.paused() if not self.is_saved(known.id)]
        if in_ram:
            raise Difference(f"a drain had answered, and these were not saved: {in_ram}\n{self.server.tail()}")

    def try_snapshot(self, id, content):
        copy = self.sdk.create(id, timeout=LIFE)
        self.compare(copy.sandbox_id, content)
        self.sdk.kill(copy.sandbox_id)

    def check(self):
        """All sandboxes and snapshots are there, and no others, with all that they must have."""
        listed = self.listed()
        expected = {known.id: "paused" if known.is_paused else "running" for known in self.sandboxes.values()}
        if listed != expected:
            raise Difference(f"the sandboxes are {listed}, not {expected}:\n{self.server.tail()}")
        if (snapshots := self.snapshots()) != (kept := {id for _, id in self.kept()}):
            raise Difference(f"the snapshots are {snapshots}, not {kept}")
        for known in self.running():
            known.content = self.compare(known.id, known.content)

    def compare(self, id, content):
        state = self.until_it_answers(id)
        if found := content.differences(state):
            raise Difference(f"{id}: {'; '.join(found)}\n{self.server.tail()}")
        seen = content.seen(state)
        deadline = time.monotonic() + 10
        while self.state(id)["ticks"] == state["ticks"]:
            if time.monotonic() > deadline:
                raise Difference(f"{id} does not count on")
            time.sleep(0.01)
        return seen

    def add(self, known):
        self.next += 1
        self.state(known.id, f"/add/{self.next}")
        known.content = known.content.plus(self.next)

    # Requests

    def until_it_answers(self, id, seconds=20):
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.state(id)
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise Difference(f"{id} does not answer: {error}\n{self.server.tail()}") from None
                time.sleep(0.1)

    def state(self, id, path="/state"):
        headers = {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": str(PORT)}
        request = urllib.request.Request(self.server.url + path, headers=headers)
        with self.opener.open(request, timeout=30) as answer:
            return json.load(answer)

    def listed(self):
        return {one["sandboxID"]: one["state"] for one in self.ask("GET", "/v2/sandboxes?state=running,paused&limit=100")}

    def snapshots(self):
        return {one["snapshotID"] for one in self.ask("GET", "/snapshots?limit=100")}

    def is_saved(self, sandbox):
        """Looks at the records on disk, because clients cannot tell."""
        for path in (self.server.state / "homes/serve/boxes").glob("*/record.json"):
            with contextlib.suppress(OSError, ValueError):
                record = json.loads(path.read_text())
                if (record.get("spec") or {}).get("sandbox") == sandbox and record["state"] == "saved":
                    return True
        return False

    def ask(self, method, path, body=None, key=None):
        headers = {"X-API-Key": key or self.server.key, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, method=method, headers=headers, data=data)
        with self.opener.open(request, timeout=120) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def remove_all(self):
        for id in self.snapshots():
            self.sdk.delete_snapshot(id)
        for id in self.listed():
            self.sdk.kill(id)


def admin_key(server):
    command = [server.isopod, "--state-dir", str(server.state), "key", "create", "--local", "--scope", "admin"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def leftovers(server):
    """What is on disk after everything was removed. The server may still be busy with it."""
    deadline = time.monotonic() + 30
    while found := [str(path) for path in (server.state / "homes/serve/boxes").glob("*/memory")]:
        if time.monotonic() > deadline:
            return [f"left on the disk: {path}" for path in found]
        time.sleep(0.1)
    return []


def table(args, rounds, played, problems):
    """The result as a page shows it."""
    actions = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(rounds.done.items()))
    commit = os.popen(f"git -C {ROOT} rev-parse --short HEAD").read().strip()
    return (
        f"The last recorded run, on {date.today()} at `{commit}`: seed {args.seed}, **{played} rounds, "
        f"{len(problems)} differences**, {rounds.next} numbers in each place ({actions}).\n"
    )


def write_docs(text):
    page = PAGE.read_text()
    before, rest = page.split(BEGIN, 1)
    PAGE.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--isopod", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write-docs", action="store_true")
    args = parser.parse_args()
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = ["--save-paused-after", str(SAVED_AFTER), "--pack-memory-after", str(PACKED_AFTER)]
    server, rounds, problems, played = Server(args.isopod, options=options), None, [], 0
    try:
        server.start()
        os.environ.update(server.environment())
        rounds = Rounds(server, args.seed, admin_key(server))
        rounds.create()
        for played in range(1, args.rounds + 1):
            print(f"round {played}: {rounds.play()}", flush=True)
        rounds.remove_all()
        problems += leftovers(server)
    except Exception:
        problems.append(f"seed {args.seed}, round {played}: {traceback.format_exc()}")
    finally:
        problems += server.stop()
    for problem in problems:
        print(f"problem: {problem}")
    if rounds is None:
        sys.exit(1)
    text = table(args, rounds, played, problems)
    print(text)
    if args.write_docs and not problems:
        write_docs(text)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
