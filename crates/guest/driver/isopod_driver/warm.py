"""Does everything slow once, before the first fork: imports packages, and runs one cell of each kind as a warm-up."""

import contextlib
import os

from . import data, fork_state, import_hooks, packages, plain, shell
from .optional import import_or_none
from .outputs import Silent

LEVELS = ("none", "shell", "full")

PACKAGES = ("numpy", "pandas", "PIL.Image", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "IPython.display")

# The libraries read these when they are loaded. Threads that start before a fork are missing after it.
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

SHELL_CELL = "print(end='')\n[{'warm': 1.5}, 'up']"
ERROR_CELL = "def fail():\n    1 / 0\nfail()"
FULL_CELL = """
import matplotlib.pyplot as _plt
_plt.plot([1, 2], [3, 4], label='a'); _plt.title('t'); _plt.legend()
_plt.show()
"""
TABLE_CELL = """
import pandas as _pandas
_pandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})
"""


def prepare(level):
    """Returns an interpreter that has run no user code and can be forked."""
    with one_thread():
        packages.warm_up()
        import_hooks.watch()
        present = [name for name in PACKAGES if level == "full" and import_or_none(name)]
        interpreter = shell.create() or plain.create()
        data.register(interpreter)
        interpreter.attach(Silent())
        if level != "none":
            interpreter.run(SHELL_CELL)
            interpreter.run(ERROR_CELL)
        if "matplotlib.pyplot" in present:
            interpreter.run(FULL_CELL)
        if "pandas" in present:
            interpreter.run(TABLE_CELL)
        interpreter.reset()
    interpreter.generators = fork_state.find_generators()
    return interpreter


@contextlib.contextmanager
def one_thread():
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update({name: "1" for name in THREAD_VARIABLES})
    try:
        yield
    finally:
        for name, value in before.items():
            fork_state.put_back(name, value)
