"""Resets what a fork copies but must not share: the environment, and all random number generators."""

import contextlib
import gc
import os
import random
import sys
import tempfile
import time

# Kernels have no terminal, so programs must not start a pager.
NEEDED = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}


def environment(wanted):
    """Sets the environment to exactly `wanted`, plus the few variables that a kernel needs."""
    os.environ.clear()
    for name, value in {**NEEDED, **wanted}.items():
        set_variable(name, value)
    time.tzset()


def set_variable(name, value):
    try:
        os.environ[str(name)] = str(value)
    except ValueError:
        # A name with `=` or a NUL byte is not valid.
        pass


@contextlib.contextmanager
def call_environment(wanted):
    """Sets the variables of one call, and restores them afterwards even if the cell changed them."""
    if not wanted:
        yield
        return
    before = {name: os.environ.get(name) for name in wanted}
    for name, value in wanted.items():
        set_variable(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            put_back(name, value)


def put_back(name, value):
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def find_generators():
    """The generators of preloaded modules; each kernel reseeds them."""
    return [
        found
        for found in gc.get_objects()
        if isinstance(found, random.Random) and not isinstance(found, random.SystemRandom)
    ]


def reseed(seed, generators):
    """Gives each kernel its own random numbers. Without a valid seed, uses the system's randomness."""
    material = seed_bytes(seed)
    random.seed(material)
    for position, generator in enumerate(generators):
        generator.seed(material + position.to_bytes(4, "big"))
    # It has a generator of its own and would return the same file names in every kernel.
    tempfile._name_sequence = None
    reseed_numpy(material)


def seed_bytes(seed):
    try:
        material = bytes.fromhex(seed)
    except (TypeError, ValueError):
        material = b""
    return material or os.urandom(32)


def reseed_numpy(material):
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return
    padded = material.ljust(-(-len(material) // 4) * 4, b"\0")
    words = [int.from_bytes(padded[at : at + 4], "big") for at in range(0, len(padded), 4)]
    try:
        numpy_random.seed(words)
    except Exception:
        # User code has chosen a generator that cannot be seeded again.
        pass
