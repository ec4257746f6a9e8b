"""Runs the driver's tests: `python3 crates/guest/driver/tests/run.py [unittest arguments]`.

Creates a virtual environment in ~/.cache/isopod/driver-venv with the packages and kernels of the template
code-interpreter-v1, and creates it again when their list changes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(HERE, "../../../node/recipes/code-interpreter-v1/packages.txt")
VENV = os.path.expanduser("~/.cache/isopod/driver-venv")
PYTHON = os.path.join(VENV, "bin", "python")


def main(arguments):
    ensure_environment()
    command = [PYTHON, "-m", "unittest", *(arguments or ["discover", "-s", HERE])]
    return subprocess.run(command, cwd=HERE, check=False).returncode


def ensure_environment():
    with open(PACKAGES, "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    mark = os.path.join(VENV, "isopod-packages")
    if os.path.exists(mark) and open(mark, encoding="ascii").read() == wanted:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    base = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    subprocess.run([base, "-m", "venv", VENV], check=True)
    with open(PACKAGES, encoding="utf-8") as file:
        packages = [word for line in file if line[0] not in "#[" for word in line.split()]
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "setuptools", "wheel", *packages], check=True)
    install_kernels()
    with open(mark, "w", encoding="ascii") as file:
        file.write(wanted)


def install_kernels():
    subprocess.run([PYTHON, "-m", "bash_kernel.install", "--sys-prefix"], check=True)
    directory = os.path.join(VENV, "share", "jupyter", "kernels", "deno")
    os.makedirs(directory, exist_ok=True)
    spec = {
        "argv": [os.path.join(VENV, "bin", "deno"), "jupyter", "--kernel", "--conn", "{connection_file}"],
        "display_name": "Deno",
        "language": "typescript",
    }
    with open(os.path.join(directory, "kernel.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
