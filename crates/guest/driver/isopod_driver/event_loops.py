"""Keeps a copy of a kernel from using the kernel's event loops.

Both processes share the `epoll` of a loop after a fork: what one of them adds or removes, it adds or removes for the other.
A copy starts with new loops, and never frees the old ones, because that would remove things from their `epoll`.
"""

import sys

# Of the kernels that this process was forked from.
abandoned = []


def known(interpreter):
    """The loops of this process, except those that only user code has."""
    found = [getattr(helpers(), "_asyncio_event_loop", None), getattr(interpreter, "loop", None)]
    found.append(getattr(getattr(policy(), "_local", None), "_loop", None))
    return [loop for loop in found if loop is not None]


def abandon(interpreter, loops):
    """Called in a copy with the loops that were known before the fork."""
    abandoned.extend(loops)
    if getattr(helpers(), "_asyncio_event_loop", None) is not None:
        helpers()._asyncio_event_loop = None
    if getattr(interpreter, "loop", None) is not None:
        interpreter.loop = None
    local = getattr(policy(), "_local", None)
    if local is not None:
        # As newer versions of Python do after each fork.
        policy()._local = type(local)()


def helpers():
    return sys.modules.get("IPython.core.async_helpers")


def policy():
    return getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
