"""The one entry of the driver: `python3 -s run.py MODE ...`.

Its own directory is on `sys.path` only while its modules are imported, so that code which is run later cannot see it.
The modes and what they speak are described in `isopod_driver/__init__.py`.
"""

import os
import sys


def load():
    """Imports the driver and leaves `sys.path` as a person at a prompt would have it."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path[:] = [here] + rest
    # Everything is imported now: later, in a kernel, the directory is no longer on the path.
    from isopod_driver import entry

    sys.path[:] = [""] + [entry for entry in rest if entry != ""]
    return entry


if __name__ == "__main__":
    sys.exit(load().main(sys.argv[1:]))
