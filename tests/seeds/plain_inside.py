"""Run by storage.py with the official SDK: sandboxes of a program that knows nothing of Isopod's metadata.

    plain_inside.py EXECUTION BUCKET
"""

import sys
from pathlib import Path

from e2b_code_interpreter import Sandbox

execution, bucket = sys.argv[1:]
SCRIPT = (Path(__file__).resolve().parent / "start-up.sh").read_text()
# In the place of goofys: it only tells that it was called.
RECORDER = '#!/bin/sh\necho "$@" >> /tmp/goofys-was-called\n'


def start_up(sandbox):
    """What the script says, and how goofys was called."""
    sandbox.files.write("/tmp/start-up.sh", SCRIPT)
    sandbox.files.write("/usr/local/bin/goofys", RECORDER, user="root")
    sandbox.commands.run("chmod 755 /usr/local/bin/goofys", user="root")
    said = sandbox.commands.run("bash /tmp/start-up.sh").stdout
    return said, sandbox.commands.run("cat /tmp/goofys-was-called 2>/dev/null || true").stdout


def by_variables():
    """The variables that the seed passes into a sandbox, and no key."""
    root = f"/opt/sentient/executions/{execution}"
    envs = {"STORAGE_BASE_PATH": "/opt/sentient", "S3_BUCKET": bucket, "EXECUTION_ID": execution}
    with Sandbox.create(envs=envs) as sandbox:
        said, called = start_up(sandbox)
        assert said.splitlines() == [
            "start-up: already mounted: /opt/sentient",
            f"start-up: can write: {root}",
            "start-up: ready",
        ], said
        assert called == "", called
        # What the seed's `ready_cmd` waits for: in the sandbox, not among the files of the workspace.
        seen = sandbox.commands.run('test -f "$STORAGE_BASE_PATH/.e2b_ready" && ls -A "$STORAGE_BASE_PATH"').stdout
        assert seen.split() == [".e2b_ready", "executions"], seen
        ran = sandbox.run_code(f"open('{root}/results/plain.txt', 'w').write('by variables'); open('{root}/artifacts/test.txt').read()")
        assert ran.error is None and ran.text == "Hello from host!", (ran.error, ran.text)


def elsewhere():
    """A bucket that is not the server's: the script mounts it by itself, and the log says why the server did not."""
    with Sandbox.create(envs={"S3_BUCKET": "another-bucket", "EXECUTION_ID": execution}) as sandbox:
        said, called = start_up(sandbox)
        assert "start-up: mounted: another-bucket" in said, said
        assert called.split()[-2:] == ["another-bucket", "/opt/sentient"], called
        assert sandbox.commands.run("grep -c fuse /proc/mounts || true").stdout.strip() == "0"


def as_roma_sends_it():
    """The variables of ROMA's own toolkit, which names no execution: the default, and no key but those that it sends."""
    sent = {"AWS_ACCESS_KEY_ID": "AKIAROMA", "AWS_SECRET_ACCESS_KEY": "of-roma", "AWS_REGION": "us-east-1"}
    with Sandbox.create(envs={"STORAGE_BASE_PATH": "/opt/sentient", "ROMA_S3_BUCKET": bucket} | sent) as sandbox:
        said, called = start_up(sandbox)
        assert said.startswith("start-up: already mounted: /opt/sentient\nstart-up: can write: "), said
        assert "/executions/shared-" in said and called == "", (said, called)
        found = sandbox.commands.run("test -f /opt/sentient/.e2b_ready && env | grep ^AWS_ | grep -v ^AWS_CA_BUNDLE= | sort").stdout
        assert found.splitlines() == sorted(f"{name}={value}" for name, value in sent.items()), found


def by_default():
    """The operator's default: one sandbox writes, the next one reads."""
    with Sandbox.create() as sandbox:
        place = sandbox.commands.run('echo "$STORAGE_BASE_PATH/executions/$EXECUTION_ID"').stdout.strip()
        assert place.startswith("/opt/sentient/executions/shared-"), place
        sandbox.files.write(f"{place}/outputs/note.txt", "kept")
        assert "already mounted" in start_up_with_bucket(sandbox), place
    with Sandbox.create() as sandbox:
        assert sandbox.files.read(f"{place}/outputs/note.txt") == "kept"
    print(place)


def start_up_with_bucket(sandbox):
    sandbox.files.write("/tmp/start-up.sh", SCRIPT)
    return sandbox.commands.run("bash /tmp/start-up.sh", envs={"S3_BUCKET": bucket}).stdout


by_variables()
elsewhere()
as_roma_sends_it()
by_default()
