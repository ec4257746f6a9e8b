"""Makes packages importable as soon as they are installed."""

import importlib
import os
import shlex
import site
import sys


def refresh():
    importlib.invalidate_caches()
    if not site.ENABLE_USER_SITE and site.check_enableusersite() is None:
        return
    # The first `pip install --user` creates it, so it was not on the path when Python started. The home directory is read
    # again because the process may have started with another one.
    site.USER_BASE = site.USER_SITE = None
    user_site = site.getusersitepackages()
    if os.path.isdir(user_site) and user_site not in sys.path:
        add_before_system(user_site)


def notice():
    """Like `refresh`, for packages that another process installed since the last cell. Costs one look at a directory."""
    user_site = site.USER_SITE
    if user_site and user_site not in sys.path and os.path.isdir(user_site):
        refresh()


def warm_up():
    """Loads what `refresh` needs, because a kernel may not be able to."""
    importlib.invalidate_caches()
    site.getusersitepackages()


def add_before_system(directory):
    """Adds the directory where Python itself would: before the system's packages."""
    before = list(sys.path)
    site.addsitedir(directory)
    added = [entry for entry in sys.path if entry not in before]
    position = first_system_entry(before)
    sys.path[:] = before[:position] + added + before[position:]


def first_system_entry(path):
    for position, entry in enumerate(path):
        if entry.endswith(("site-packages", "dist-packages")):
            return position
    return len(path)


def pip_command(arguments):
    return "%s -m pip %s" % (shlex.quote(sys.executable), arguments)
