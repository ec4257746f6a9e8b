"""``python -m isopod``: the same as ``isopod``."""

import os
import sys

from isopod import find_program


def main() -> None:
    program = find_program()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
