"""The packages of a framework: one directory each below the cache, made once for each list of packages."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

UV = "0.13.8"


class CannotInstall(Exception):
    """Why this machine cannot have the framework."""


def cache_root():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "isopod" / "frameworks"


def installed(framework):
    """The directory with the packages of a framework: a virtual environment, or a Node project."""
    if framework.language == "js":
        program, wanted, install = "node", "package-lock.json", _node_project
    else:
        program, wanted, install = _python(framework.python), "requirements.txt", _environment
    key = hashlib.sha256(program.encode() + (framework.directory / wanted).read_bytes())
    home = cache_root() / f"{framework.name}-{key.hexdigest()[:12]}"
    with _locked(home):
        if not (home / ".ready").exists():
            _remove_older(framework)
            install(framework, home, program)
            (home / ".ready").touch()
    return home


def versions(framework, home):
    """The versions of the framework and of its SDKs, as they are installed."""
    names = [*framework.packages, *framework.sdk]
    if framework.language == "js":
        files = [home / "node_modules" / name / "package.json" for name in names]
        return {name: json.loads(file.read_text())["version"] for name, file in zip(names, files)}
    question = "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    return json.loads(_output([home / "bin" / "python", "-c", question, *names]))


def _environment(framework, home, python):
    # The machine may reach the index through a proxy with an authority of its own.
    uv = [_uv(), "--quiet", "--system-certs"]
    _run([*uv, "venv", "--clear", "--python", python, home])
    _run([*uv, "pip", "install", "--python", home / "bin" / "python", "-r", framework.directory / "requirements.txt"])


def _node_project(framework, home, _):
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(framework.directory / name, home)
    # Peers that are only for other sandboxes are hundreds of megabytes.
    flags = ["--no-audit", "--no-fund", "--silent", "--legacy-peer-deps"]
    _run(["npm", "ci", *flags], cwd=home)


def _uv():
    home = cache_root() / f"uv-{UV}"
    with _locked(home):
        if not (home / ".ready").exists():
            _run([sys.executable, "-m", "venv", "--clear", home])
            _run([home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", f"uv=={UV}"])
            (home / ".ready").touch()
    return home / "bin" / "uv"


def _python(oldest):
    """A Python of at least that version: this one, one of the path, one of pyenv, or else one that uv downloads."""
    names = [f"python3.{minor}" for minor in range(oldest[1], 14)]
    found = [sys.executable, *filter(None, map(shutil.which, names))]
    found += sorted(str(path) for path in (Path.home() / ".pyenv/versions").glob("3.*/bin/python3"))
    for program in found:
        with contextlib.suppress(CannotInstall):
            version = tuple(map(int, re.findall(r"\d+", _output([program, "--version"]))[:2]))
            if oldest <= version <= (3, 13):
                return program
    return f"{oldest[0]}.{oldest[1]}"


def _remove_older(framework):
    for old in cache_root().glob(f"{framework.name}-*"):
        if re.fullmatch(re.escape(framework.name) + "-[0-9a-f]{12}", old.name):
            shutil.rmtree(old)


def _run(command, cwd=None):
    _output(command, cwd)


def _output(command, cwd=None):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotInstall(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr).strip()[-1500:]}")
    return done.stdout


@contextlib.contextmanager
def _locked(home):
    """Runs at the same time share the packages: one installs, the others wait."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / f".{home.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
