"""A fresh root file system of a distribution, with this machine's kernel below it."""

import os
import shutil
import subprocess
from pathlib import Path

from runner import archives, clients

# What somebody has who has installed the system, Rust's linker and git. The installers of Debian and Ubuntu install Python, and
# Ubuntu's minimum has no apt.
PACKAGES = "apt,ca-certificates,gcc,git,libc6-dev,python3"
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Makes the root the only thing that the script sees, apart from devices, the kernel's own file systems, and the claims on
# slots, which all state directories of a kernel must share. A mount of its own, not a chroot: the spawner pivots. The shell
# stays the first process of its namespace of processes, so that it reaps orphans and everything ends with it.
ENTER = r"""
set -e
root=$1
mkdir -p /run/isopod "$root/run/isopod" "$root/mnt"
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
for directory in sys dev; do mount --rbind "/$directory" "$root/$directory"; done
mount --bind /run/isopod "$root/run/isopod"
cd "$root"
pivot_root . mnt
umount -l /mnt
cd /root
status=0
sh -ec "$2" || status=$?
exit $status
"""

# mmdebstrap works for minutes in a copy of all mounts, and the images of other state directories would stay busy for as long.
BOOTSTRAP = r"""
awk '$1 ~ "^/dev/loop" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l
exec mmdebstrap "$@"
"""


class Userland:
    """Removed when the context ends."""

    def __init__(self, system, directory):
        self.system = system
        self.directory = directory
        self.root = directory / "root"
        self.path = SEARCHED

    def __enter__(self):
        self.directory.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        # Not across mounts: all are in namespaces that have ended, but a mistake must not reach this machine's files.
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.directory)], check=False)

    def make(self, log):
        """Raises `Unreachable` if the system's packages cannot be downloaded from here."""
        archives.check_reachable(self.system, self.directory)
        settings = self.directory / "apt.conf"
        settings.write_text("".join(f"{line}\n" for line in archives.transport_settings()))
        command = ["unshare", "--mount", "sh", "-c", BOOTSTRAP, "sh", "--mode=root", "--variant=minbase"]
        command += [f"--include={PACKAGES}", f"--aptopt={settings}", *archives.keyring(self.system, self.directory)]
        command += [self.system.suite, str(self.root), *archives.sources(self.system)]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        self._configure(log)

    def _configure(self, log):
        clients.copy_files(self.root)
        clients.copy_authorities(self.root)
        # Services of packages would use ports that this machine's services have.
        policy = self.root / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        self.run("update-ca-certificates", log, log).check_returncode()

    def has(self, path):
        return os.path.lexists(self.root / path.lstrip("/"))

    def run(self, script, out, err, deadline=600):
        """Runs a script there, as root. All its processes and mounts end with it."""
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(self.root), script]
        return subprocess.run(command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=deadline)

    def ask(self, script):
        """What a script prints there."""
        done = self.run(script, subprocess.PIPE, subprocess.PIPE)
        if done.returncode != 0:
            raise RuntimeError(f"`{script}` ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode().strip()

    def _environment(self):
        own = {"HOME": "/root", "PATH": self.path, "LANG": "C.UTF-8", "CARGO_TERM_COLOR": "never", "RUSTUP_AUTO_INSTALL": "0"}
        return clients.variables() | own

    def clone(self, repository, place):
        """Puts a clean clone of the repository there, without what is not committed."""
        target = self.root / place.lstrip("/")
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(repository), str(target)], check=True)
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=target, check=True, capture_output=True, text=True).stdout.strip()


def missing():
    """What this machine lacks to make userlands. Empty if nothing."""
    programs = [name for name in ("mmdebstrap", "unshare", "git", "apt-get", "dpkg-deb") if shutil.which(name) is None]
    return ["root"] * (os.geteuid() != 0) + programs + [archives.HELPER] * (not Path(archives.HELPER).exists())
