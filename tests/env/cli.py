"""A day with the official CLI in version 1.x: `cli.py PROGRAM`, which knows only the key in its environment.

`spawn` and `connect` want a terminal, so they get a pseudo-terminal with somebody who types. `template build` runs the `docker`
that `isopod env` brings. Prints a line for each part that went well.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

PROGRAM = sys.argv[1]
# Of one command. A build takes the longest.
DEADLINE = 90
ID = re.compile(r"sandbox ID (i[0-9a-z]+)")
COLORS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
DOCKERFILE = """FROM debian:12
ARG GREETING=none
COPY a.txt scripts /srv/
RUN echo "$GREETING" > /srv/greeting
"""


class Terminal:
    """A command of the CLI on a terminal of its own, for the duration of a block."""

    def __init__(self, *words):
        self.words = words
        self.shown = ""

    def __enter__(self):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execv(PROGRAM, [PROGRAM, *self.words])
        return self

    def __exit__(self, *_):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)

    def type(self, line):
        os.write(self.master, line.encode() + b"\r")

    def until(self, pattern):
        """Reads until it has shown that, and returns the match."""
        while not (found := re.search(pattern, self.shown)):
            assert self.read(), f"{self.words} ended before {pattern!r}: {self.shown!r}"
        return found

    def ended(self):
        """Reads to the end and returns the exit code."""
        while self.read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def read(self):
        """Reads what comes next. False at the end of all output."""
        readable, _, _ = select.select([self.master], [], [], DEADLINE)
        assert readable, f"{self.words} showed nothing new for {DEADLINE} s: {self.shown!r}"
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux reports EIO when the other side is closed.
            return False
        self.shown += COLORS.sub("", data.decode(errors="replace"))
        return bool(data)


def e2b(*words, code=0, variables=None):
    """Runs a command that needs no terminal, and returns all that it prints."""
    environment = os.environ | (variables or {})
    done = subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=environment, text=True, timeout=DEADLINE)
    assert done.returncode == code, f"e2b {' '.join(words)} ended with {done.returncode}: {done.stdout}"
    return COLORS.sub("", done.stdout)


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.2)


def a_spawned_terminal_runs_commands_and_ends_with_its_sandbox():
    with Terminal("sandbox", "spawn", "base") as terminal:
        sandbox = terminal.until(ID)[1]
        # The sum is not what is typed: an echo of the line would not do.
        terminal.type("echo typed-$((40 + 2))")
        terminal.until("typed-42")
        listed = e2b("sandbox", "list")
        assert sandbox in listed and "base" in listed, listed
        terminal.type("exit")
        assert terminal.ended() == 0, terminal.shown
    assert sandbox not in e2b("sandbox", "list")


def a_second_terminal_connects_and_the_logs_tell_what_ran():
    with Terminal("sandbox", "spawn", "base") as first:
        sandbox = first.until(ID)[1]
        first.type("echo shared-$((1 + 1)) > /tmp/shared && echo written-$((2 + 2))")
        first.until("written-4")
        with Terminal("sandbox", "connect", sandbox) as second:
            second.type("cat /tmp/shared")
            second.until("shared-2")
            second.type("exit")
            second.ended()
        until(lambda: "sandbox created" in e2b("sandbox", "logs", sandbox))
        assert sandbox in e2b("sandbox", "list"), "the first terminal still uses it"
        first.type("exit")
        assert first.ended() == 0, first.shown


def a_killed_sandbox_is_gone():
    with Terminal("sandbox", "spawn", "base") as terminal:
        sandbox = terminal.until(ID)[1]
        terminal.type("echo typed-$((40 + 2))")
        terminal.until("typed-42")
        assert f"{sandbox} has been killed" in e2b("sandbox", "kill", sandbox)
        terminal.ended()
    assert sandbox not in e2b("sandbox", "list")
    assert f"{sandbox} wasn't found" in e2b("sandbox", "kill", sandbox)
    with Terminal("sandbox", "spawn", "no-such-template") as terminal:
        assert terminal.ended() == 1, terminal.shown


def a_template_is_built_by_name_listed_spawned_published_and_deleted():
    name = f"old-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as place:
        Path(place, "e2b.Dockerfile").write_text(DOCKERFILE)
        Path(place, "a.txt").write_text("a file\n")
        Path(place, "scripts").mkdir()
        Path(place, "scripts", "start-up.sh").write_text("echo started\n")
        Path(place, "scripts", "secret").write_text("stays here\n")
        Path(place, ".dockerignore").write_text("scripts/secret\n")
        # Any token will do: the server goes by the key, which the CLI sends too.
        variables = {"E2B_ACCESS_TOKEN": "none"}
        arguments = ["--path", place, "--name", name, "--build-arg", "GREETING=hello"]
        shown = e2b("template", "build", *arguments, variables=variables)
        assert "finished" in shown and "builds the Dockerfile itself" in shown, shown
        settings = Path(place, "e2b.toml").read_text()
        assert f'template_name = "{name}"' in settings, settings
        template = re.search(r'^template_id = "(\w+)"', settings, re.MULTILINE)[1]
        assert visibility(template, variables) == "Private"
        e2b("template", "publish", "--yes", "--path", place, variables=variables)
        assert visibility(template, variables) == "Public"
        e2b("template", "unpublish", "--yes", "--path", place, variables=variables)
        assert visibility(template, variables) == "Private"
        with Terminal("sandbox", "spawn", name) as terminal:
            terminal.until(ID)
            terminal.type("cat /srv/a.txt /srv/greeting && sh /srv/start-up.sh && ls /srv && exit")
            assert terminal.ended() == 0, repr(terminal.shown)
            for line in ["a file", "hello", "started"]:
                assert re.search(rf"[\r\n]{line}\r", terminal.shown), repr(terminal.shown)
            assert "secret" not in terminal.shown, repr(terminal.shown)
        e2b("template", "delete", "--yes", "--path", place, variables=variables)
        assert visibility(template, variables) is None


def visibility(template, variables):
    """Returns whether `template list` calls it public or private."""
    line = next((line for line in e2b("template", "list", variables=variables).splitlines() if template in line), None)
    return line and line.split()[0]


def main():
    # `template list` insists on what `e2b auth login` writes, but takes everything in it from the environment.
    settings = Path.home() / ".e2b" / "config.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({}))
    for part in [
        a_spawned_terminal_runs_commands_and_ends_with_its_sandbox,
        a_second_terminal_connects_and_the_logs_tell_what_ran,
        a_killed_sandbox_is_gone,
        a_template_is_built_by_name_listed_spawned_published_and_deleted,
    ]:
        part()
        print(part.__name__.replace("_", " "), flush=True)


main()
