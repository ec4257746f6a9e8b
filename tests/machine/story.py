"""What happens to sandboxes in a machine, and when it is switched off and on. See run.py."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import disk
from machine import Machine

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "full-tests.md"
BEGIN, END = "<!-- machines: begin -->\n", "<!-- machines: end -->"
HEAD = "| system | kernel | run |\n|---|---|---|\n"
# In a sandbox: which boot it sees, and its clocks.
SEEN = "cat /proc/sys/kernel/random/boot_id; python3 -c 'import time; print(time.monotonic(), time.clock_gettime(7))'"
# On the machine: the state of a sandbox by its record, because clients cannot tell whether memory is on disk.
STATE = """
python3 - <<'END'
import glob, json
for path in glob.glob('/var/lib/isopod/homes/serve/boxes/*/record.json'):
    record = json.load(open(path))
    if (record.get('spec') or {}).get('sandbox') == '%s' and not record.get('snapshot'):
        print(record['state'])
END
"""


# On the machine: the processes that keepers are, also without a server. The brackets keep this script itself out.
KEEPERS = "grep --files-with-matches --text 'keeper[.]py' /proc/[0-9]*/cmdline 2>/dev/null || true"
MAIN_PID = "systemctl show isopod --property MainPID --value"
# All that may be left: settings, state, cgroups, mounts and the unit's link.
REMAINS = """
ls -d /etc/isopod /var/lib/isopod* /usr/bin/isopod /etc/systemd/system/*.wants/isopod.service 2>/dev/null
find /sys/fs/cgroup -name 'isopod-*'
grep isopod /proc/self/mounts
true
"""


class Story:
    def __init__(self, machine):
        urls = dict.fromkeys(["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"], machine.url)
        os.environ |= urls | {"E2B_API_KEY": machine.key}
        # They are imported late, because the SDK reads its address from the environment.
        import e2b
        from rounds import Rounds

        self.machine, self.sdk, self.volume = machine, e2b.Sandbox, e2b.Volume
        self.rounds = Rounds(machine, seed=1)

    def first_boot(self):
        """Sandboxes with a program in memory, one of them paused, and a snapshot of it."""
        step("the machine boots")
        self.machine.boot()
        self.check_doctor()
        step("sandboxes are used")
        self.kept, self.lost = self.make("kept"), self.make("lost")
        self.snapshot = self.connect(self.kept).create_snapshot().snapshot_id
        self.at_snapshot = self.content(self.kept)
        self.check_copy()
        self.add(self.kept)
        self.check_volume()

    def upgrade(self):
        """A package that is installed over the one that runs restarts the server, and sandboxes go on."""
        step("the package is upgraded while sandboxes run")
        server, keepers = self.machine.run(MAIN_PID), self.machine.run(KEEPERS)
        self.machine.run("dpkg --install /root/isopod.deb")
        self.machine.wait("restart the server", 300, self.machine.answers)
        if self.machine.run(MAIN_PID) in (server, "0"):
            raise RuntimeError(f"the server was not restarted: its process was {server}, and is {self.machine.run(MAIN_PID)}")
        if self.machine.run(KEEPERS) != keepers:
            raise RuntimeError(f"the processes in sandboxes were {keepers}, and are {self.machine.run(KEEPERS)}")
        self.expect({self.kept: "running", self.lost: "running"}, "a server was replaced by another one")
        self.rounds.compare(self.kept, self.content(self.kept))
        self.add(self.kept)

    def check_doctor(self):
        """Every limit was tried in a sandbox, and holds."""
        findings = json.loads(self.machine.run("isopod doctor --json"))
        verdicts = {one["what"]: one["verdict"] for one in findings}
        if "fail" in verdicts.values() or verdicts.get("saved memory") != "ok":
            raise RuntimeError(f"doctor finds {json.dumps(findings, indent=1)}")
        for one in findings:
            if one["verdict"] == "warn":
                print(f"  doctor warns: {one['what']}: {one['detail']}")

    def reboots(self):
        before = self.seen(self.kept)
        self.sdk.pause(self.kept, request_timeout=120)
        if self.state(self.kept) != "frozen":
            raise RuntimeError("it was saved before the shutdown, which shall do it")

        step("systemd shuts it down, and it boots again")
        self.machine.shut_down()
        self.machine.boot()
        self.expect({self.kept: "paused"}, f"{self.lost} ran and could not survive")
        self.resume(self.kept, before)
        copy = self.check_copy(keep=True)

        step("the server restarts under systemd")
        self.machine.run(f"cat > {disk.SETTINGS} <<'END'\n{disk.settings(save_paused_after=1)}END\nsystemctl restart isopod")
        self.machine.wait("restart the server", 300, self.machine.answers)
        self.rounds.compare(self.kept, self.content(self.kept))
        self.add(self.kept)

        step("a pause is saved, and the power fails at once")
        before = self.seen(self.kept)
        self.sdk.pause(self.kept, request_timeout=120)
        self.machine.wait("save a pause", 300, lambda: self.state(self.kept) == "saved")
        self.machine.cut_power()
        self.machine.boot()
        self.expect({self.kept: "paused"}, f"{copy} ran and could not survive")
        self.resume(self.kept, before)
        self.check_copy()

    def end(self):
        step("everything is removed")
        self.rounds.remove_all()
        left = "find /var/lib/isopod/homes/serve/boxes -name memory"
        self.machine.wait("remove all memory", 60, lambda: not self.machine.run(left))
        self.make("left")
        self.remove_package()
        self.purge_package()

    def remove_package(self):
        """The service stops. What runs in sandboxes, and their state, stay."""
        keepers = self.machine.run(KEEPERS)
        self.machine.run("dpkg --remove isopod")
        state = self.machine.run("systemctl is-active isopod || true")
        if state != "inactive" or self.machine.answers():
            raise RuntimeError(f"the service of a package that was removed is {state}")
        if not keepers or self.machine.run(KEEPERS) != keepers:
            raise RuntimeError(f"the processes in sandboxes were {keepers}, and are {self.machine.run(KEEPERS)}")
        remains = self.machine.run(REMAINS).splitlines()
        if "/var/lib/isopod" not in remains or "/usr/bin/isopod" in remains or any(".wants/" in line for line in remains):
            raise RuntimeError(f"a package that was removed leaves {remains}")

    def purge_package(self):
        self.machine.run("dpkg --purge isopod")
        left = self.machine.run(f"{KEEPERS}\n{REMAINS}")
        if left:
            raise RuntimeError(f"a package that was purged leaves {left}")

    def make(self, name):
        """A sandbox with a keeper, which listens and is reached through the edge."""
        self.rounds.create()
        known = list(self.rounds.sandboxes.values())[-1]
        self.add(known.id)
        print(f"  {name}: {known.id}")
        return known.id

    def check_copy(self, keep=False):
        """A sandbox from the snapshot has what its source had then."""
        copy = self.sdk.create(self.snapshot, timeout=3600, request_timeout=300).sandbox_id
        self.rounds.compare(copy, self.at_snapshot)
        if not keep:
            self.sdk.kill(copy)
        return copy

    def check_volume(self):
        """Sandboxes see a volume through FUSE, in which kernels differ."""
        volume = self.volume.create("data", request_timeout=300)
        volume.write_file("/from-outside", "outside", request_timeout=300)
        mounts = {"/mnt/data": volume}
        sandbox = self.sdk.create(volume_mounts=mounts, timeout=3600, request_timeout=300)
        command = "cat /mnt/data/from-outside && echo -n inside > /mnt/data/from-inside"
        seen = sandbox.commands.run(command, timeout=120).stdout, volume.read_file("/from-inside", request_timeout=300)
        if seen != ("outside", "inside"):
            raise RuntimeError(f"the files of a volume are {seen}")
        sandbox.kill(request_timeout=120)
        self.volume.destroy(volume.volume_id, request_timeout=120)

    def content(self, id):
        return self.rounds.sandboxes[id].content

    def add(self, id):
        self.rounds.add(self.rounds.sandboxes[id])

    def connect(self, id):
        return self.sdk.connect(id, timeout=3600, request_timeout=300)

    def seen(self, id):
        boot, clocks = self.connect(id).commands.run(SEEN, timeout=120).stdout.split("\n")[:2]
        return boot, *map(float, clocks.split())

    def resume(self, id, before):
        """It goes on as if nothing had been."""
        self.connect(id)
        self.rounds.compare(id, self.content(id))
        boot, monotonic, boottime = self.seen(id)
        if boot != before[0]:
            raise RuntimeError(f"it saw the boot {before[0]}, and sees {boot}")
        if monotonic < before[1] or boottime < before[2]:
            raise RuntimeError(f"its clocks went back: {before[1:]}, then {(monotonic, boottime)}")
        uptime = float(self.machine.run("cut -d' ' -f1 /proc/uptime"))
        print(f"  resumed: its monotonic clock was at {before[1]:.0f} s and is at {monotonic:.0f} s; the host's is at {uptime:.0f} s")
        self.add(id)
        self.rounds.compare(id, self.content(id))

    def state(self, id):
        return self.machine.run(STATE % id)

    def expect(self, listed, why):
        deadline = time.monotonic() + 120
        while (found := self.rounds.listed()) != listed:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the sandboxes are {found}, not {listed} ({why}):\n{self.machine.tail()}")
            time.sleep(1)


def step(text):
    print(f"{time.strftime('%H:%M:%S')} {text}")


def tell(system, isopod, is_full):
    """Plays the story in a machine. Returns the version of its kernel, or `None` if something was wrong."""
    directory = Path(tempfile.mkdtemp(prefix="isopod-machine-"))
    machine = None
    try:
        step(f"{system.title}: the disk is made")
        machine = Machine(system, directory, isopod)
        story = Story(machine)
        story.first_boot()
        story.upgrade()
        kernel = machine.run("uname -r")
        print(f"  Linux {kernel}")
        if is_full:
            story.reboots()
        story.end()
    except Exception as error:
        print(f"{system.title} failed: {error}\nthe machine's console is kept in {directory}/console.log", file=sys.stderr)
        if machine:
            machine.cut_power()
            machine.disk.unlink()
        return None
    machine.cut_power()
    subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=True)
    return kernel


def write_docs(results):
    """Replaces the rows of the systems that ran."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    before, rest = PAGE.read_text().split(BEGIN, 1)
    table, after = rest.split(END, 1)
    rows = {line.split("|")[1].strip(): line for line in table.removeprefix(HEAD).splitlines()}
    for system, kernel in results.items():
        rows[system.title] = f"| {system.title} | {kernel or '–'} | {date.today()}, {commit}: {'passed' if kernel else '**failed**'} |"
    PAGE.write_text(before + BEGIN + HEAD + "".join(f"{row}\n" for row in rows.values()) + END + after)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--isopod", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--write-docs", action="store_true")
    args = parser.parse_args()
    is_full = bool(os.environ.get("ISOPOD_FULL"))
    # The oldest kernel finds most.
    machines = disk.MACHINES if is_full else disk.MACHINES[:1]
    if args.only:
        machines = [system for system in disk.MACHINES if any(text in system.name for text in args.only)]
    results = {system: tell(system, args.isopod, is_full) for system in machines}
    if args.write_docs and is_full:
        write_docs(results)
    passed = sum(kernel is not None for kernel in results.values())
    print(f"{passed} passed, {len(results) - passed} failed")
    sys.exit(0 if passed == len(results) else 1)


if __name__ == "__main__":
    main()
