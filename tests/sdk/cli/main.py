"""The official command line, as a user or a script runs it: `main.py PROJECT [--only TEXT]`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cases import Absent, case, run_all  # noqa: E402
from harness.packages import CLI_BUILD_VERSIONS, node_project  # noqa: E402
from harness.records import can_save_memory, is_on_disk  # noqa: E402


class Cli:
    """The program of one version."""

    name = "cli"

    def __init__(self, project):
        self.program = str(Path(project) / "node_modules" / ".bin" / "e2b")

    def run(self, *words, stdin=None, code=0, errors=False, timeout=60, variables=None):
        """Returns its standard output, or its errors. It must exit with that code."""
        environment = os.environ | (variables or {})
        done = subprocess.run([self.program, *words], input=stdin, capture_output=True, timeout=timeout, env=environment)
        shown = f"e2b {' '.join(words)} ended with {done.returncode}\n{done.stdout!r}\n{done.stderr!r}"
        assert done.returncode == code, shown
        return (done.stderr if errors else done.stdout).decode()

    def created(self):
        return Sandbox(self)


class Sandbox:
    """A sandbox for the duration of a block."""

    def __init__(self, cli):
        self.cli = cli

    def __enter__(self):
        self.id = self.cli.run("sandbox", "create", "base", "--detach").strip().splitlines()[-1]
        return self.id

    def __exit__(self, *_):
        self.cli.run("sandbox", "kill", self.id)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come true in {seconds} s"
        time.sleep(0.2)
    return value


def listed(cli, *options):
    return {item["sandboxId"]: item for item in json.loads(cli.run("sandbox", "list", "--format", "json", *options))}


@case("create", core=True)
def create_detached_prints_the_id_and_kill_ends_it(cli):
    with cli.created() as sandbox:
        assert sandbox.startswith("i")
    assert "wasn't found" in cli.run("sandbox", "kill", sandbox, errors=True)


@case("list", core=True)
def list_shows_running_and_paused_apart(cli):
    with cli.created() as sandbox:
        assert listed(cli)[sandbox]["state"] == "running"
        assert sandbox in cli.run("sandbox", "list", "--limit", "0")
        cli.run("sandbox", "pause", sandbox)
        assert sandbox not in listed(cli)
        assert listed(cli, "--state", "running,paused")[sandbox]["state"] == "paused"
        assert sandbox not in listed(cli, "--metadata", "no=such")


@case("info", core=True)
def info_in_both_formats(cli):
    with cli.created() as sandbox:
        info = json.loads(cli.run("sandbox", "info", "--format", "json", sandbox))
        assert (info["sandboxId"], info["templateId"], info["state"]) == (sandbox, "base", "running")
        assert sandbox in cli.run("sandbox", "info", sandbox)


@case("errors", core=True)
def what_does_not_exist_ends_with_an_error(cli):
    missing = "i" + "0" * 20
    cli.run("sandbox", "info", missing, code=1)
    cli.run("sandbox", "exec", missing, "true", code=1)
    cli.run("sandbox", "create", "no-such-template", "--detach", code=1)


@case("commands", core=True)
def exec_gives_output_and_exit_code(cli):
    with cli.created() as sandbox:
        assert cli.run("sandbox", "exec", sandbox, "echo", "hello there") == "hello there\n"
        cli.run("sandbox", "exec", sandbox, "sh", "-c", "exit 3", code=3)
        words = ["-u", "root", "-c", "/tmp", "-e", "A=b c", sandbox, "sh", "-c", 'whoami; pwd; echo "$A"']
        assert cli.run("sandbox", "exec", *words) == "root\n/tmp\nb c\n"


@case("stdin", core=True)
def exec_reads_what_is_piped_in(cli):
    with cli.created() as sandbox:
        assert cli.run("sandbox", "exec", sandbox, "cat", stdin=b"one\ntwo\n") == "one\ntwo\n"
        big = b"0123456789" * 200_000
        assert cli.run("sandbox", "exec", sandbox, "wc", "-c", stdin=big).strip() == str(len(big))


@case("background", core=True)
def exec_in_the_background_returns_at_once(cli):
    with cli.created() as sandbox:
        cli.run("sandbox", "exec", "--background", sandbox, "sh", "-c", "sleep 1; touch /tmp/done")
        until(lambda: "done" in cli.run("sandbox", "exec", sandbox, "ls", "/tmp"))


@case("pause", core=True)
def pause_and_resume(cli):
    with cli.created() as sandbox:
        cli.run("sandbox", "exec", sandbox, "sh", "-c", "echo kept > f")
        assert "paused" in cli.run("sandbox", "pause", sandbox)
        assert "resumed" in cli.run("sandbox", "resume", sandbox)
        assert cli.run("sandbox", "exec", sandbox, "cat", "f") == "kept\n"


@case("pause", core=True)
def a_process_goes_on_after_a_pause_in_memory_and_on_disk(cli):
    if not can_save_memory():
        raise Absent("the server cannot save memory")
    with cli.created() as sandbox:
        # Only this process has the number.
        cli.run("sandbox", "exec", "--background", sandbox, "sh", "-c", "NUMBER=in-memory exec sleep 1000")
        pid = until(lambda: cli.run("sandbox", "exec", sandbox, "sh", "-c", "pgrep -x sleep || true").strip())
        for waits in [False, True]:
            cli.run("sandbox", "pause", sandbox)
            if waits:
                until(lambda: is_on_disk(sandbox), seconds=60)
            cli.run("sandbox", "resume", sandbox)
            number = f"tr '\\0' '\\n' < /proc/{pid}/environ | grep NUMBER"
            assert cli.run("sandbox", "exec", sandbox, "sh", "-c", number) == "NUMBER=in-memory\n"


@case("metrics", core=True)
def metrics_in_both_formats(cli):
    with cli.created() as sandbox:

        def lines():
            text = cli.run("sandbox", "metrics", "--format", "json", sandbox)
            return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

        found = until(lines)
        assert found[-1]["cpuCount"] >= 1 and found[-1]["memTotal"] > found[-1]["memUsed"] > 0
        assert "MiB" in cli.run("sandbox", "metrics", sandbox)


@case("logs", core=True)
def logs_tell_the_lifecycle(cli):
    with cli.created() as sandbox:

        def messages():
            text = cli.run("sandbox", "logs", "--format", "json", sandbox)
            return [json.loads(line)["message"] for line in text.splitlines() if line.startswith("{")]

        until(lambda: "sandbox created" in messages())


@case("logs", core=True)
def logs_tell_the_output_of_commands(cli):
    with cli.created() as sandbox:
        cli.run("sandbox", "exec", sandbox, "sh", "-c", "echo to-be-logged-1; echo to-be-logged-2 >&2")

        def found():
            text = cli.run("sandbox", "logs", sandbox)
            return "to-be-logged-1" in text and "to-be-logged-2" in text

        until(found)


@case("templates", core=True)
def templates_are_listed(cli):
    found = json.loads(cli.run("template", "list", "--format", "json"))
    assert "base" in [template["templateID"] for template in found]
    assert "base" in cli.run("template", "list")


@case("builds", core=True)
def a_dockerfile_is_built_listed_published_and_removed(cli):
    """The official command line's own verbs."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as place:
        Path(place, "e2b.Dockerfile").write_text("FROM debian:12\nCOPY a.txt /srv/\nRUN cp /srv/a.txt /srv/b.txt\n")
        Path(place, "a.txt").write_text("hello\n")
        options = ["--path", place, "--cpu-count", "1", "--memory-mb", "512"]
        shown = cli.run("template", "create", name, *options, timeout=300)
        assert name in shown, shown
    found = {one["templateID"]: one for one in json.loads(cli.run("template", "list", "--format", "json"))}
    template = next(one for one in found.values() if name in one["aliases"])
    assert (template["cpuCount"], template["memoryMB"], template["public"]) == (1, 512, False)
    cli.run("template", "publish", "--yes", name)
    found = {one["templateID"]: one for one in json.loads(cli.run("template", "list", "--format", "json"))}
    assert found[template["templateID"]]["public"]
    sandbox = cli.run("sandbox", "create", name, "--detach").strip().splitlines()[-1]
    try:
        assert cli.run("sandbox", "exec", sandbox, "cat", "/srv/b.txt") == "hello\n"
    finally:
        cli.run("sandbox", "kill", sandbox)
    cli.run("template", "unpublish", "--yes", name)
    cli.run("template", "delete", "--yes", name)
    cli.run("sandbox", "create", name, "--detach", code=1)


@case("builds", core=True)
def a_project_is_begun_and_an_old_one_migrated(cli):
    """`template init` and `template migrate`; the second reads e2b.toml."""
    with tempfile.TemporaryDirectory() as place:
        cli.run("template", "init", "--path", place, "--name", "begun", "--language", "python-sync")
        assert any(path.suffix == ".py" for path in Path(place).rglob("*")), list(Path(place).rglob("*"))
    with tempfile.TemporaryDirectory() as place:
        Path(place, "e2b.Dockerfile").write_text("FROM debian:12\nRUN echo\n")
        Path(place, "e2b.toml").write_text('template_id = "abc"\ntemplate_name = "moved"\ndockerfile = "e2b.Dockerfile"\n')
        cli.run("template", "migrate", "--path", place, "--language", "python-sync")
        assert any("debian:12" in path.read_text() for path in Path(place).rglob("*.py"))


# It runs `docker build` and `docker push`, whose result the server does not need.
DOCKER = '#!/bin/sh\necho "$1" >> "$(dirname "$0")/calls"\n'


@case("builds", core=True)
def template_build_with_a_name_builds_in_the_versions_that_have_it(cli):
    """As the docs say: with Isopod in the place of `docker`, and any access token."""
    for version in CLI_BUILD_VERSIONS:
        old = Cli(node_project("@e2b/cli", version))
        # With dots, as people write versions.
        name = "roma-dspy-prod-v1.0.0"
        with tempfile.TemporaryDirectory() as place:
            programs = Path(place, "bin")
            programs.mkdir()
            Path(programs, "docker").symlink_to(os.environ["ISOPOD_SUITE_PROGRAM"])
            Path(place, "a.txt").write_text("a file\n")
            Path(place, "secret.txt").write_text("stays here\n")
            Path(place, ".dockerignore").write_text("secret.txt\n")
            Path(place, "e2b.Dockerfile").write_text("FROM debian:12\nCOPY *.txt /srv/\nRUN ls /srv > /srv/made\n")
            variables = {"PATH": f"{programs}:{os.environ['PATH']}", "E2B_ACCESS_TOKEN": "none"}
            shown = old.run("template", "build", "--path", place, "--name", name, timeout=300, variables=variables)
            assert "Building sandbox template" in shown and "finished" in shown, shown
            assert f'template_name = "{name}"' in Path(place, "e2b.toml").read_text()
            # Again, by the e2b.toml that the first build wrote: the same template, with the files of now.
            Path(place, "a.txt").write_text("a newer file\n")
            again = old.run("template", "build", "--path", place, timeout=300, variables=variables)
            assert "finished" in again, again
            # A `docker` that sends no files is told what does.
            Path(programs, "docker").unlink()
            Path(programs, "docker").write_text("#!/bin/sh\n")
            Path(programs, "docker").chmod(0o755)
            failed = old.run("template", "build", "--path", place, timeout=300, variables=variables, code=1)
            assert "isopod template build" in failed, failed
        assert name in old.run("template", "list", variables={"E2B_ACCESS_TOKEN": "none"}), version
        sandbox = cli.run("sandbox", "create", name, "--detach").strip().splitlines()[-1]
        try:
            assert cli.run("sandbox", "exec", sandbox, "cat", "/srv/a.txt", "/srv/made") == "a newer file\na.txt\nmade\n"
        finally:
            cli.run("sandbox", "kill", sandbox)
        cli.run("template", "delete", "--yes", name)


@case("builds", core=True)
def template_build_of_the_newest_version_builds_nothing(cli):
    """It only says that it is deprecated, on every server; `template create` builds."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "e2b.Dockerfile").write_text("FROM debian:12\nRUN echo\n")
        done = subprocess.run([cli.program, "template", "build"], cwd=place, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "DEPRECATION" in done.stdout + done.stderr, done
        assert [path.name for path in Path(place).iterdir()] == ["e2b.Dockerfile"]


@case("snapshots", core=True)
def snapshots_are_created_listed_used_and_deleted(cli):
    name = f"snap-{uuid.uuid4().hex[:12]}"
    with cli.created() as sandbox:
        cli.run("sandbox", "exec", sandbox, "sh", "-c", "echo kept > f")
        # Only this process has the number.
        cli.run("sandbox", "exec", "--background", sandbox, "sh", "-c", "NUMBER=in-memory exec sleep 1000")
        made = cli.run("sandbox", "snapshot", "create", sandbox, "--name", name)
        assert f"{name}:default" in made, made
        found = json.loads(cli.run("sandbox", "snapshot", "list", sandbox, "--format", "json"))
        assert [one["snapshotId"] for one in found] == [f"{name}:default"], found
        assert name in cli.run("sandbox", "snapshot", "list", "--name", name)
        copy = cli.run("sandbox", "create", f"{name}:default", "--detach").strip().splitlines()[-1]
        try:
            assert cli.run("sandbox", "exec", copy, "cat", "f") == "kept\n"
            of_sleep = "tr '\\0' '\\n' < /proc/$(pgrep -x sleep)/environ | grep NUMBER"
            assert cli.run("sandbox", "exec", copy, "sh", "-c", of_sleep) == "NUMBER=in-memory\n"
        finally:
            cli.run("sandbox", "kill", copy)
        cli.run("sandbox", "snapshot", "delete", f"{name}:default")
        assert json.loads(cli.run("sandbox", "snapshot", "list", sandbox, "--format", "json")) == []
        # It says so, and ends well.
        cli.run("sandbox", "snapshot", "delete", f"{name}:default")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("project")
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    args = parser.parse_args()
    good = run_all(Cli(args.project), args.core, [args.only], workers=2)
    sys.exit(0 if good else 1)


main()
