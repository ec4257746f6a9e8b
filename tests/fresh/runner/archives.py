"""The package archives of the distributions, as apt on this machine reaches them."""

import hashlib
import subprocess
from pathlib import Path

from runner.outcome import Unreachable

HELPER = "/usr/lib/apt/apt-helper"
# Used if apt on this machine has no such archive.
DEFAULTS = {
    "debian": "http://deb.debian.org/debian",
    "debian-security": "http://deb.debian.org/debian-security",
    "ubuntu": "http://archive.ubuntu.com/ubuntu",
}
UBUNTU_KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
# Debian does not ship Ubuntu's keys, so they come from its archive, and are the ones that we know.
UBUNTU_KEYS = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEYS_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
# How this machine's apt reaches its archives, as far as it holds for other archives too.
TRANSPORT = ("Acquire::http::", "Acquire::https::", "Acquire::Check-Valid-Until", "Acquire::ForceIPv", "Acquire::Retries")


def sources(system):
    """The lines of a sources.list with all updates, as an installer writes them."""
    if system.distribution == "ubuntu":
        archive, pockets = archive_of("ubuntu"), ("", "-updates", "-security")
        return [f"deb {archive} {system.suite}{pocket} main universe" for pocket in pockets]
    main, security = archive_of("debian"), archive_of("debian-security")
    return [f"deb {main} {system.suite} main", f"deb {main} {system.suite}-updates main",
            f"deb {security} {system.suite}-security main"]


def archive_of(kind):
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True)
    return pick(kind, listed.stdout.split())


def pick(kind, listed):
    """The first archive of that kind, by the last part of its address."""
    return next((uri.rstrip("/") for uri in listed if uri.rstrip("/").endswith(f"/{kind}")), DEFAULTS[kind])


def check_reachable(system, directory):
    """Raises `Unreachable` unless apt on this machine can download from the archives of the system."""
    for line in sources(system):
        _, archive, suite, *_ = line.split()
        download(f"{archive}/dists/{suite}/InRelease", directory / "InRelease")


def keyring(system, directory):
    """The options for mmdebstrap that name the keys of the archive."""
    if system.distribution != "ubuntu":
        return []
    if UBUNTU_KEYRING.exists():
        return ["--keyring", str(UBUNTU_KEYRING)]
    package, keys = directory / "keys.deb", directory / "keys"
    download(f"{archive_of('ubuntu')}/{UBUNTU_KEYS}", package)
    if hashlib.sha256(package.read_bytes()).hexdigest() != UBUNTU_KEYS_SHA256:
        raise RuntimeError("the package with Ubuntu's keys is not the one that we know")
    subprocess.run(["dpkg-deb", "--extract", str(package), str(keys)], check=True)
    return ["--keyring", str(keys / UBUNTU_KEYRING.relative_to("/"))]


def download(uri, file):
    """Downloads as apt does, with its proxy and its credentials."""
    done = subprocess.run([HELPER, "download-file", uri, str(file)], capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["apt gave no reason"])[-1]
        raise Unreachable(f"apt cannot download {uri}: {reason}")


def transport_settings():
    """Lines of apt.conf with this machine's proxies and the like."""
    dumped = subprocess.run(["apt-config", "dump", "--no-empty"], capture_output=True, text=True, check=True).stdout
    return [line for line in dumped.splitlines() if line.startswith(TRANSPORT)]
