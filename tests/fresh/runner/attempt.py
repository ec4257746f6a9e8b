"""The README's two commands on one system."""

import re
import time
from pathlib import Path

from runner import readme, toolchain
from runner.outcome import FAILED, PASSED, SKIPPED, Outcome, Unreachable
from runner.userland import SEARCHED, Userland

CLONE = "/root/isopod"
STATE = "/var/lib/isopod"
CLAIMS = Path("/run/isopod/tags")
# Builds included, on two cores.
DEADLINES = {"first": 3600, "second": 5 * 3600}
# Removes what the first command keeps for the next one, and keeps the name under which the host knows it.
THEN_UNINSTALL = f"""
status=$?
cp {STATE}/tag /root/tag
target/release/isopod uninstall --yes >&2
exit $status
"""
TOTAL = re.compile(r"^(\d+ tests in \d+ jobs), \d+ of them failed$", re.MULTILINE)
LEFT_OUT = re.compile(r"^skipped: (.*)$", re.MULTILINE)


class Attempt:
    """One system: made, given Rust and a clone, and tried. `commit` and `rust` are known after `prepare`."""

    def __init__(self, system, directory, log):
        self.userland = Userland(system, directory)
        self.system, self.log = system, log
        self.commit = self.rust = None

    def run(self, names):
        """Runs the commands with these names, the second only if the first passed. Returns an outcome for each."""
        with self.userland, open(self.log, "wb") as log:
            try:
                self.prepare(log)
            except Unreachable as reason:
                return [Outcome(self.system, name, SKIPPED, detail=str(reason)) for name in names]
            except Exception as error:
                return [Outcome(self.system, names[0], FAILED, detail=f"the system could not be made: {error}")]
            outcomes = []
            for name in names:
                outcomes.append(self.timed(name, log))
                if outcomes[-1].word != PASSED:
                    break
            return outcomes

    def prepare(self, log):
        self.userland.make(log)
        self.rust = self.install_packaged_rust(log) if self.system.has_packaged_rust else self.install_rustup()
        self.commit = self.userland.clone(readme.ROOT, CLONE)

    def install_rustup(self):
        version = toolchain.copy_rustup(self.userland.root)
        self.userland.path = f"/root/.cargo/bin:{SEARCHED}"
        if toolchain.MUSL in self.userland.ask("rustup target list --installed"):
            raise RuntimeError(f"the copied toolchain still has {toolchain.MUSL}")
        return f"rustup, {version}"

    def install_packaged_rust(self, log):
        names = self.userland.ask("apt-get update -qq >&2; apt-cache pkgnames cargo-").split()
        version = toolchain.newest_packaged(names)
        if version is None:
            raise RuntimeError(f"{self.system.title} packages no cargo with a version in its name")
        install = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"
        self.userland.run(f"{install} cargo-{version} rustc-{version}", log, log).check_returncode()
        self.userland.path = f"/usr/lib/rust-{version}/bin:{SEARCHED}"
        return f"the package `cargo-{version}`"

    def timed(self, name, log):
        start = time.monotonic()
        try:
            word, detail = PASSED, getattr(self, name)(log, DEADLINES[name])
        except Exception as error:
            word, detail = FAILED, str(error)
        return Outcome(self.system, name, word, time.monotonic() - start, detail)

    def first(self, log, deadline):
        command = readme.commands()[0]
        printed = self.userland.directory / "printed"
        with open(printed, "wb") as out:
            script = f"cd {CLONE}\nset +e\n{command}{THEN_UNINSTALL}"
            done = self.userland.run(script, out, log, deadline)
        told = printed.read_text(errors="replace").strip()
        if done.returncode != 0:
            raise RuntimeError(f"`{command}` ended with {done.returncode}")
        if told != readme.printed_by(command):
            raise RuntimeError(f"`{command}` printed {told!r}")
        self.check_nothing_left()
        has_musl = self.userland.has(f"{CLONE}/target/guest-build/{toolchain.MUSL}")
        return f"guest with {'musl' if has_musl else 'glibc'}"

    def check_nothing_left(self):
        if self.userland.has(STATE):
            raise RuntimeError(f"`isopod uninstall` left {STATE}")
        tag = (self.userland.root / "root/tag").read_text().strip()
        if (CLAIMS / tag).exists():
            raise RuntimeError(f"`isopod uninstall` left something on the host with the tag {tag}")

    def second(self, log, deadline):
        command = " ".join([readme.commands()[1], *self.system.tiers])
        # With tiers that are named, the command installs nothing.
        setup = "cargo xtask setup\n" if self.system.tiers else ""
        begin = self.log.stat().st_size
        done = self.userland.run(f"cd {CLONE}\n{setup}{command}", log, log, deadline)
        told = self.log.read_bytes()[begin:].decode(errors="replace")
        return judge_tests(command, done.returncode, told)


def judge_tests(command, status, told):
    """How many tests ran. A tier that was left out is a failure, although the command succeeds."""
    if status != 0:
        raise RuntimeError(f"`{command}` ended with {status}")
    if left_out := LEFT_OUT.findall(told):
        raise RuntimeError(f"`{command}` left out: {'; '.join(left_out)}")
    totals = TOTAL.findall(told)
    if not totals:
        raise RuntimeError(f"`{command}` did not say how many tests ran")
    return totals[-1]
