"""The systems that a newcomer may have, and what runs on each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    name: str
    title: str
    suite: str
    distribution: str = "debian"
    # Whether Rust comes from the distribution's versioned packages instead of rustup.
    has_packaged_rust: bool = False
    # What the README's second command gets here. Without options it installs what it needs by itself and runs everything.
    tiers: tuple = ("--unit", "--real")


SYSTEMS = [
    System("debian-12", "Debian 12", "bookworm", tiers=()),
    System("debian-13", "Debian 13", "trixie"),
    System("ubuntu-24.04", "Ubuntu 24.04", "noble", "ubuntu"),
    System("ubuntu-24.04-packaged", "Ubuntu 24.04", "noble", "ubuntu", has_packaged_rust=True),
]
