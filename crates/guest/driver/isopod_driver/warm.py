"""Everything slow is done once, before the first fork: imports, and one cell of each kind so that the paths are warm."""

import contextlib
import os

from . import data, fresh, late, packages, plain, shell
from .optional import import_or_none
from .outputs import Silent

LEVELS = ("none", "shell", "full")

PACKAGES = ("numpy", "pandas", "PIL.Image", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "IPython.display")

# Read by the libraries when they are loaded. A thread before the fork would be missing after it.
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
    """An interpreter that has run no user code, ready to be forked."""
    with one_thread():
        packages.warm_up()
        late.watch()
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
        interpreter.forget()
    interpreter.generators = fresh.find_generators()
    return interpreter


@contextlib.contextmanager
def one_thread():
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update({name: "1" for name in THREAD_VARIABLES})
    try:
        yield
    finally:
        for name, value in before.items():
            fresh.put_back(name, value)
