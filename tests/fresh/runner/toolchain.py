"""Rust in a userland: a copy of this machine's toolchain without the musl target, or the distribution's packages."""

import re
import shutil
import subprocess
from pathlib import Path

MUSL = "x86_64-unknown-linux-musl"
PROXIES = ["cargo", "rustc", "rustdoc"]
# Only read by people, and half of the size.
DOCUMENTATION = "rust-docs"
NEWEST = re.compile(r"cargo-(\d+)\.(\d+)$")


def copy_rustup(root):
    """Copies rustup and the toolchain that is in use here. Returns its version.

    Everything is really copied, links are followed: rustup changes what it finds, and must not find this machine's own.
    """
    rustup = shutil.which("rustup")
    if rustup is None:
        raise RuntimeError("this machine has no rustup, whose toolchain the userland gets")
    sysroot = Path(_output("rustc", "--print", "sysroot")).resolve()
    programs, home = root / "root/.cargo/bin", root / "root/.rustup"
    programs.mkdir(parents=True)
    shutil.copy(Path(rustup).resolve(), programs / "rustup")
    for name in PROXIES:
        (programs / name).symlink_to("rustup")
    ignored = {str(sysroot / "share/doc"), str(sysroot / "lib/rustlib" / MUSL)}
    shutil.copytree(sysroot, home / "toolchains" / sysroot.name, ignore=lambda directory, names: [
        name for name in names if str(Path(directory) / name) in ignored])
    for component in (f"rust-std-{MUSL}", f"{DOCUMENTATION}-{_host_of(sysroot.name)}"):
        forget_component(home / "toolchains" / sysroot.name / "lib/rustlib", component)
    (home / "settings.toml").write_text(f'version = "12"\ndefault_toolchain = "{sysroot.name}"\nprofile = "minimal"\n\n[overrides]\n')
    return _output("rustc", "--version").split()[1]


def forget_component(rustlib, component):
    """Removes a component from rustup's records, so that it is as if it had never been installed."""
    (rustlib / f"manifest-{component}").unlink(missing_ok=True)
    listed = rustlib / "components"
    listed.write_text("".join(line for line in listed.read_text().splitlines(True) if line.strip() != component))
    records = rustlib / "multirust-config.toml"
    head, *blocks = re.split(r"(?=^\[\[components\]\]$)", records.read_text(), flags=re.MULTILINE)
    records.write_text(head + "".join(block for block in blocks if _component_of(block) != component))


def _component_of(block):
    fields = dict(re.findall(r'^(\w+) = "([^"]*)"$', block, flags=re.MULTILINE))
    return f"{fields.get('pkg')}-{fields.get('target')}"


def _host_of(toolchain):
    return toolchain.partition("-")[2]


def newest_packaged(names):
    """The newest version, such as 1.97, that the distribution packages as `cargo-1.97`. None if there is none."""
    versions = [tuple(map(int, found.groups())) for found in map(NEWEST.match, names) if found]
    return ".".join(map(str, max(versions))) if versions else None


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
