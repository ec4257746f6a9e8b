"""The threads of numeric libraries.

They are loaded with one thread, so that the process can be forked. After the first cell that uses them, they may use all
cores: not earlier, so that no client waits for it. In a copy of a kernel, a library that does not expect forks gets one.
"""

import ctypes
import os
import re

USES_NUMBERS = re.compile(r"\b(numpy|scipy|pandas|sklearn|statsmodels|np\.)")
SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
WANTED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class Threads:
    def __init__(self):
        self.restored = False

    def after_cell(self, code):
        if not self.restored and USES_NUMBERS.search(code):
            self.restored = True
            set_threads(wanted_threads())


def wanted_threads():
    for name in WANTED:
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return len(os.sched_getaffinity(0))


def set_threads(count):
    if count < 2:
        return
    for library in loaded_libraries("openblas"):
        set_in_library(library, count)


def survive_fork():
    """Lets GNU's OpenMP, which scikit-learn uses, work with one thread. It would wait forever for the others, which are not in
    a copy of the process. OpenBLAS and LLVM's OpenMP notice a fork and start new ones."""
    for library in loaded_libraries("libgomp"):
        library.omp_set_num_threads(ctypes.c_int(1))


def loaded_libraries(part_of_name):
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if part_of_name in line}
    except (OSError, IndexError):
        return
    for path in sorted(paths):
        try:
            yield ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            # It is not a library, or was replaced on the disk.
            pass


def set_in_library(library, count):
    for name in SETTERS:
        setter = getattr(library, name, None)
        if setter is not None:
            setter(ctypes.c_int(count))
            return
