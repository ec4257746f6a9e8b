"""The published packages, each version in a place of its own under the cache, installed once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON_VERSIONS = ["2.63.0", "2.52.1", "2.49.1", "2.36.0"]
JS_VERSIONS = ["2.51.0", "2.45.0", "2.19.5"]
# Its bundle for `import` fails in Node with "Dynamic require of "undici" is not supported"; `require` works.
JS_BY_REQUIRE = {"2.19.5"}
CLI_VERSIONS = ["2.19.0"]
# The first ones that go to `E2B_SANDBOX_URL` over plain HTTP are 2.9.0 and 2.7.0.
PYTHON_INTERPRETER_VERSIONS = ["2.11.5", "2.10.5", "2.9.0"]
# Later versions of `e2b` have no longer what this one calls, although it asks for no upper bound.
CORE_OF = {("e2b-code-interpreter", "2.9.0"): "e2b==2.36.0"}
JS_INTERPRETER_VERSIONS = ["2.8.0", "2.7.2", "2.7.0"]


NODE_HOMES = {"e2b": "js", "@e2b/cli": "cli", "@e2b/code-interpreter": "js-code-interpreter"}


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
        command = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"{package}@{version}"]
        subprocess.run(command, cwd=home, check=True)

    _once(home, install)
    return home


def _once(home, install):
    ready = home / ".ready"
    if ready.exists():
        return
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    install()
    ready.touch()
