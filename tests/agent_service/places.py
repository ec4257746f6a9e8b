"""Where things are: the repository, the example, and a directory that looks like a clone with the packages installed."""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "agent-service"
sys.path.insert(0, str(ROOT / "tests" / "sdk"))

from harness.packages import _once, cache_root  # noqa: E402


def environment_with_packages(install):
    """A directory with `venv`, made once by the README's own commands for each list of packages."""
    key = hashlib.sha256(install.encode() + (EXAMPLE / "requirements.txt").read_bytes())
    home = cache_root() / f"agent-service-{key.hexdigest()[:12]}"

    def run():
        (home / "examples").symlink_to(ROOT / "examples")
        subprocess.run(["bash", "-ec", install], cwd=home, check=True)
        (home / "examples").unlink()

    _once(home, run)
    return home / "venv"


def clone(place, venv, isopod):
    """What a reader has: a clone, the packages in it, and the program on the path."""
    for name in ("examples", "python"):
        (place / name).symlink_to(ROOT / name)
    (place / "venv").symlink_to(venv)
    (place / "bin").mkdir()
    (place / "bin" / "isopod").symlink_to(isopod)
