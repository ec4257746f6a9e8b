"""Lets numeric libraries use all cores again. They are loaded with one thread so that the process can be forked.

This happens after a cell has ended, so that no client waits for it.
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
    for path in loaded_libraries():
        set_in_library(path, count)


def loaded_libraries():
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return sorted({line.split(None, 5)[5].strip() for line in maps if "openblas" in line})
    except (OSError, IndexError):
        return []


def set_in_library(path, count):
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return
    for name in SETTERS:
        setter = getattr(library, name, None)
        if setter is not None:
            setter(ctypes.c_int(count))
            return
