"""Isopod is E2B on your own machine: sandboxes for AI agents in one binary.

The package carries the ``isopod`` program. ``find_program()`` says where it is, and ``python -m isopod`` runs it.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

__all__ = ["find_program"]


def find_program() -> str:
    """Return the path of the ``isopod`` program that was installed with this package.

    Raises FileNotFoundError if there is none, for example because the files were copied without it.
    """
    directories = [sysconfig.get_path("scripts"), os.path.join(sys.prefix, "bin")]
    if sys.platform != "win32":
        directories.append(sysconfig.get_path("scripts", scheme="posix_user"))
    for directory in directories:
        program = os.path.join(directory, "isopod")
        if os.access(program, os.X_OK):
            return program
    # `pip install --target DIR` puts scripts beside the package.
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "isopod")
    found = beside if os.access(beside, os.X_OK) else shutil.which("isopod")
    if found is None:
        raise FileNotFoundError("the isopod program is not installed; try: pip install --force-reinstall isopod")
    return found
