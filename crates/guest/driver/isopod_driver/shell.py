"""Runs cells in IPython's InteractiveShell: magics, `!cmd`, top-level await, rich display, tracebacks without colours.

No history file, no profile directory, no threads: the shell writes nothing to disk and can be forked.
"""

import contextlib
import os
import subprocess
import sys
import traceback
import warnings

from . import current, packages, pictures
from .threads import Threads
from .optional import import_or_none


def create():
    """The interpreter based on IPython, or None if that is not installed."""
    if import_or_none("IPython.core.interactiveshell") is None:
        return None
    classes = define_classes()
    return ShellInterpreter(classes)


class ShellInterpreter:
    """The interface between the kernel and the shell."""

    has_ipython = True

    def __init__(self, shell_class):
        self.generators = []
        self.threads = Threads()
        self.shell = shell_class.instance(config=configuration())
        add_magics(self.shell)
        pictures.register(self.shell)
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")

    @property
    def execution_count(self):
        return self.shell.execution_count

    def attach(self, outputs):
        current.interpreter = self
        self.shell.outputs = outputs
        # The display hooks keep their own reference.
        self.shell.display_pub.outputs = outputs
        self.shell.displayhook.outputs = outputs

    def run(self, code):
        """Runs a cell. False if the shell could not report the cell's error."""
        self.shell.error_reported = False
        outcome = self.shell.run_cell(code, store_history=True, silent=False)
        error = outcome.error_before_exec or outcome.error_in_exec
        if error is not None and not self.shell.error_reported:
            # Formatting the error failed: its package may be gone, or its message unreadable.
            name = type(error).__name__
            self.shell.outputs.error(name, message_of(error), plain_traceback(error))
            return False
        return True

    def after_cell(self, code):
        self.threads.after_cell(code)
        # Newer versions keep a copy of every result there for the history, which is disabled.
        getattr(self.shell.history_manager, "outputs", {}).clear()

    def reset(self):
        """Resets the state, as if no cell had run."""
        self.shell.reset(new_session=True)
        self.shell.last_execution_result = None

    def add_formatter(self, mime, class_path, function):
        """`function(value)` returns the value's `mime` form. The class is given by name, so it is not imported."""
        formatters = self.shell.display_formatter.formatters
        if mime not in formatters:
            formatters[mime] = object_formatter(mime, self.shell)
        module, _, name = class_path.rpartition(".")
        if module == "builtins":
            formatters[mime].for_type({"list": list, "dict": dict}[name], function)
        else:
            formatters[mime].for_type_by_name(module, name, function)

    def display(self, value):
        from IPython.display import display

        display(value)


def configuration():
    import IPython
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.xmode = "Context"
    # The name changed with IPython 9. It must be set from the start.
    config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
    config.InteractiveShell.separate_in = ""
    # Features for interactive use only.
    config.InteractiveShell.autoindent = False
    config.InteractiveShell.enable_tip = False
    config.Completer.use_jedi = False
    return config


class NoPickles:
    """In the place of the database of pickles in the profile's directory. The shell's `db` keeps in memory what it would."""

    def __init__(self, root):
        pass


def define_classes():
    """Defined here and not at the top: IPython may be missing."""
    from IPython.core import interactiveshell
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.profiledir import ProfileDir
    from traitlets import Type, observe

    # IPython before 9.17 opens it in the profile's directory, before anybody asks for `db`.
    if hasattr(interactiveshell, "PickleShareDB"):
        interactiveshell.PickleShareDB = NoPickles

    class NoProfile(ProfileDir):
        """A profile that has no directory."""

        @observe("location")
        def _location_changed(self, change):
            pass

    class ResultHook(DisplayHook):
        """The value of a cell's last expression."""

        outputs = None

        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            self.outputs.result(format_dict, True)

        def finish_displayhook(self):
            pass

    class DisplayEvents(DisplayPublisher):
        """The arguments of `display()`."""

        outputs = None

        def publish(self, data, metadata=None, *_, **__):
            self.outputs.result(data, False)

        def clear_output(self, wait=False):
            # Events that were sent cannot be taken back.
            self.outputs.flush()

    class Shell(interactiveshell.InteractiveShell):
        displayhook_class = Type(ResultHook)
        display_pub_class = Type(DisplayEvents)
        outputs = None
        error_reported = False

        def init_ipython_dir(self, ipython_dir):
            pass

        def init_profile_dir(self, profile_dir):
            self.profile_dir = NoProfile(location=os.devnull)

        def init_virtualenv(self):
            pass

        @property
        def db(self):
            """Keeps in memory what magics would store on disk."""
            return self.__dict__.setdefault("_kept", {})

        @db.setter
        def db(self, _value):
            pass

        def _showtraceback(self, etype, evalue, stb):
            self.error_reported = True
            self.outputs.error(etype.__name__, message_of(evalue), "\n".join(stb))

        @contextlib.contextmanager
        def _tee(self, channel):
            """IPython would keep a copy of everything that is printed."""
            yield

        def ask_exit(self):
            # `exit()` and `quit()` are reported like `sys.exit()`; the kernel continues.
            raise SystemExit

        def system(self, cmd):
            self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

        def enable_matplotlib(self, gui=None):
            """Figures are always shown inline."""
            return pictures.enable_inline(self, gui)

        def enable_gui(self, gui=None):
            pass

    return Shell


def message_of(error):
    try:
        return str(error)
    except Exception:
        return "<the error has no readable message>"


def plain_traceback(error):
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return type(error).__name__


def add_magics(shell):
    def pip(line):
        """Run pip of this Python. Installed packages can be imported at once."""
        shell.user_ns["_exit_code"] = run_command(packages.pip_command(line))

    shell.register_magic_function(pip, "line", "pip")


def run_command(command):
    """Runs a shell command whose output goes straight to the kernel's descriptors. Returns the exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    executable = "/bin/bash" if os.path.exists("/bin/bash") else None
    process = subprocess.Popen(command, shell=True, executable=executable)
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        packages.refresh()


def object_formatter(mime, shell):
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class ObjectFormatter(BaseFormatter):
        format_type = Unicode(mime)
        print_method = ObjectName("_repr_%s_" % mime.replace("/", "_"))
        _return_type = (dict, list)

    return ObjectFormatter(parent=shell.display_formatter)
