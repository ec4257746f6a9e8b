"""Runs the code interpreter's cases with the SDK of the interpreter that runs this, like `main.py`."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
warnings.simplefilter("ignore")

import e2b_code_interpreter  # noqa: E402
import interpreter_charts  # noqa: F401, E402
import interpreter_code  # noqa: F401, E402
import interpreter_contexts  # noqa: F401, E402
import interpreter_faults  # noqa: F401, E402
import interpreter_languages  # noqa: F401, E402
import interpreter_tool  # noqa: F401, E402
from kit import Flavour  # noqa: E402

from harness.cases import main  # noqa: E402


class InterpreterFlavour(Flavour):
    """The sync or the async code interpreter."""

    def __init__(self, name):
        super().__init__(name)
        self.Sandbox = e2b_code_interpreter.AsyncSandbox if name == "async" else e2b_code_interpreter.Sandbox


main(InterpreterFlavour, workers=3)
