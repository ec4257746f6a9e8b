"""Runs one program with E2B's SDK and prints its outcome as the last line.

    python runner/one.py NAME
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
warnings.simplefilter("ignore")

import cases  # noqa: E402, F401  registers the programs
from runner.program import PROGRAMS, run  # noqa: E402

if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(f"{name}\t{program.title}" for name, program in PROGRAMS.items()))
    else:
        print(run(PROGRAMS[sys.argv[1]]()).to_json(), flush=True)
