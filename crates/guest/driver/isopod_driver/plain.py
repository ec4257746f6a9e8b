"""Runs cells without IPython: state, value of the last expression, rich results, `!cmd`, `pip`, await, tracebacks."""

import ast
import asyncio
import builtins
import inspect
import linecache
import re
import sys
import traceback
import types

from . import current, packages, pictures, rich
from .shell import message_of, run_command
from .threads import Threads

COMMAND = re.compile(r"^(\s*)!(.+)$")
PIP = re.compile(r"^(\s*)%?pip\s+(install|uninstall|list|show|freeze)\b(.*)$")


def create():
    return PlainInterpreter()


class PlainInterpreter:
    has_ipython = False

    def __init__(self):
        self.generators = []
        self.formatters = {}
        self.outputs = None
        self.threads = Threads()
        self.loop = None
        self.add_formatter("image/png", "matplotlib.figure.Figure", pictures.png)
        self.reset()

    def attach(self, outputs):
        current.interpreter = self
        self.outputs = outputs

    def reset(self):
        """A new `__main__`, as if no cell had been run."""
        self.execution_count = 1
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.names = self.module.__dict__
        self.names["__builtins__"] = builtins
        builtins.display = self.display_all

    def after_cell(self, code):
        self.threads.after_cell(code)

    def add_formatter(self, mime, class_path, function):
        self.formatters.setdefault(mime, {})[class_path] = function

    def display(self, value):
        self.outputs.result(rich.bundle(value, self.formatters), False)

    def display_all(self, *values, **_):
        for value in values:
            self.display(value)

    def run(self, code):
        if not code.strip():
            return
        number, self.execution_count = self.execution_count, self.execution_count + 1
        filename = "Cell In[%d]" % number
        try:
            body, last = self.compile(code, filename)
            self.execute(body)
            if last is not None:
                self.show(self.execute(last))
        except BaseException as error:
            self.report(error, filename)
        pictures.flush_figures()

    def show(self, value):
        if value is None:
            return
        self.names["_"] = value
        self.outputs.result(rich.bundle(value, self.formatters), True)

    def compile(self, code, filename):
        """Compiles the statements, and separately the last expression if its value is to be shown."""
        tree, code = parse(code, filename)
        linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = compile_tree(ast.Expression(tree.body.pop().value), filename, "eval")
        return compile_tree(tree, filename, "exec"), last

    def execute(self, code):
        self.names["get_ipython"] = no_ipython
        self.names["_isopod_run"] = run_command
        value = eval(code, self.names)
        if code.co_flags & inspect.CO_COROUTINE:
            value = self.event_loop().run_until_complete(value)
        return value

    def event_loop(self):
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        return self.loop

    def report(self, error, filename):
        found = error.__traceback__
        while found is not None and found.tb_frame.f_code.co_filename != filename:
            found = found.tb_next
        lines = traceback.format_exception(type(error), error, found)
        self.outputs.error(type(error).__name__, message_of(error), "".join(lines))


def compile_tree(tree, filename, mode):
    return compile(tree, filename, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def parse(code, filename):
    try:
        return ast.parse(code, filename), code
    except SyntaxError:
        commands = with_commands(code)
        if commands == code:
            raise
        return ast.parse(commands, filename), commands


def with_commands(code):
    return "\n".join(with_command(line) for line in code.split("\n"))


def with_command(line):
    found = COMMAND.match(line)
    if found:
        return "%s_isopod_run(%r);" % (found.group(1), found.group(2))
    found = PIP.match(line)
    if found:
        return "%s_isopod_run(%r);" % (found.group(1), packages.pip_command(found.group(2) + found.group(3)))
    return line


def no_ipython():
    return None
