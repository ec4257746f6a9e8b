"""The suites, and how to run one: a process that writes one line of JSON for each case."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import packages
from harness.features import FEATURES

HERE = Path(__file__).resolve().parent.parent
DEADLINE = 600
# The cases of what SDKs make of a connection that a killed sandbox breaks. Each version of the transport has ways of its own,
# over TLS too.
ENDINGS = ("killed_under", "killed under", "of_a_killed")
# One of them runs with every change.
TLS_VERSION = "2.49.1"
PACKAGES = {
    "python": "e2b",
    "js": "e2b",
    "cli": "@e2b/cli",
    "python-interpreter": "e2b-code-interpreter",
    "js-interpreter": "@e2b/code-interpreter",
}


@dataclass
class Suite:
    """One SDK in one version."""

    kind: str
    version: str
    flavour: str = ""
    full: bool = False
    tls: bool = False
    # It has only cases with one of these texts, if there are any.
    among: tuple = ()
    results: list = field(default_factory=list)
    seconds: float = 0.0

    @property
    def has_interpreter(self):
        """Whether its sandboxes use the code interpreter's template."""
        return self.kind in ("python-interpreter", "js-interpreter")

    @property
    def name(self):
        return " ".join(part for part in (self.kind, self.version, self.flavour, "tls" if self.tls else "") if part)

    def install(self):
        package = PACKAGES[self.kind]
        if self.is_python:
            packages.python_of(self.version, package)
        else:
            packages.node_project(package, self.version)

    @property
    def is_python(self):
        return self.kind.startswith("python")

    def command(self, only):
        """Returns the command, and the variables that it needs in addition to the common ones."""
        chosen = [word for text in only for word in ("--only", text)] + ([] if self.full else ["--core"])
        chosen += [word for text in self.among for word in ("--among", text)]
        if self.is_python:
            entry = "interpreter.py" if self.has_interpreter else "main.py"
            python = packages.python_of(self.version, PACKAGES[self.kind])
            return [str(python), str(HERE / "python" / entry), self.flavour, *chosen], {}
        if self.kind == "cli":
            project = packages.node_project("@e2b/cli", self.version)
            return [sys.executable, str(HERE / "cli" / "main.py"), str(project), *chosen], {}
        package = PACKAGES[self.kind]
        project = packages.node_project(package, self.version)
        directory = HERE / "js" / "interpreter" if self.has_interpreter else HERE / "js"
        files = sorted(str(path) for path in directory.glob("*.test.mjs"))
        program = ["node", "--test", f"--test-reporter={HERE / 'js' / 'reporter.mjs'}", "--test-concurrency=4"]
        # Old versions leave timers that would keep the process running for a minute.
        program += ["--test-force-exit", *files]
        variables = {"SDK_PROJECT": str(project), "SDK_PACKAGE": package, "SDK_ONLY": "\n".join(only), "SDK_CORE": "0" if self.full else "1"}
        variables["SDK_AMONG"] = "\n".join(self.among)
        variables["SDK_BUNDLE"] = "require" if self.version in packages.JS_BY_REQUIRE else "import"
        return program, variables

    def run(self, environment, only):
        """Runs it to its end and keeps the results."""
        start = time.monotonic()
        command, variables = self.command(only)
        try:
            variables = environment | variables
            done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=DEADLINE)
            output, errors, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            output, errors, code = (late.stdout or b"").decode(), f"not done in {DEADLINE} s", -1
        self.results = [read(line) for line in output.splitlines() if line.strip()]
        if code != 0 and not any(result["outcome"] == "failed" for result in self.results):
            self.results.append(broken(f"the suite ended with {code}:\n{errors[-3000:]}"))
        self.seconds = time.monotonic() - start

    def count(self, outcome):
        return sum(result["outcome"] == outcome for result in self.results)


def read(line):
    try:
        result = json.loads(line)
        return result if result["feature"] in FEATURES else broken(f"unknown feature in {line}")
    except (ValueError, KeyError, TypeError):
        return broken(f"a line that is no result: {line}")


def broken(why):
    return {"feature": "create", "name": "the suite itself", "outcome": "failed", "seconds": 0, "error": why}


def all_suites(full):
    """The newest versions with everything, also over TLS. Older ones with the core, unless everything is requested; over TLS, what
    their transports can get wrong."""
    suites = []
    for index, version in enumerate(packages.PYTHON_VERSIONS):
        suites += [Suite("python", version, flavour, full or index == 0) for flavour in ("sync", "async")]
    suites += [Suite("js", version, full=full or index == 0) for index, version in enumerate(packages.JS_VERSIONS)]
    suites += [Suite("cli", version, full=True) for version in packages.CLI_VERSIONS]
    for index, version in enumerate(packages.PYTHON_INTERPRETER_VERSIONS):
        suites += [Suite("python-interpreter", version, flavour, full or index == 0) for flavour in ("sync", "async")]
    for index, version in enumerate(packages.JS_INTERPRETER_VERSIONS):
        suites.append(Suite("js-interpreter", version, full=full or index == 0))
    newest = [replace(suite, tls=True) for suite in suites if is_newest(suite)]
    older = [replace(suite, tls=True, among=ENDINGS) for suite in suites if not is_newest(suite)]
    return suites + newest + [suite for suite in older if full or (suite.kind, suite.version) == ("python", TLS_VERSION)]


def is_newest(suite):
    newest = {"python": packages.PYTHON_VERSIONS, "js": packages.JS_VERSIONS, "cli": packages.CLI_VERSIONS}
    newest["python-interpreter"] = packages.PYTHON_INTERPRETER_VERSIONS
    newest["js-interpreter"] = packages.JS_INTERPRETER_VERSIONS
    return suite.version == newest[suite.kind][0]
