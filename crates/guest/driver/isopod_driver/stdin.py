"""Makes `input()` and `getpass()` fail at once: there is no one to answer inside a cell."""

import builtins
import getpass

from .optional import import_or_none

MESSAGE = "%s cannot be used here: code in a sandbox has no one at its keyboard. Pass the value in the code or by a file."


class StdinNotImplementedError(RuntimeError):
    """Replaces IPython's error of the same name if IPython is not installed."""


def error_class():
    error = import_or_none("IPython.core.error")
    return getattr(error, "StdinNotImplementedError", StdinNotImplementedError)


def refuse():
    error = error_class()

    def input(prompt="", /):
        raise error(MESSAGE % "input()")

    def asked(prompt="Password: ", stream=None, **_):
        raise error(MESSAGE % "getpass()")

    builtins.input = input
    getpass.getpass = asked
