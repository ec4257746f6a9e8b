"""Finds the installed Jupyter kernels by the kernelspecs in the usual directories, and those that need no kernelspec.

Does not use jupyter_client: listing must be fast and must work without it.
"""

import json
import os
import shutil
import sys

from . import java_kernel, jupyter, node_kernel

ALIASES = {"js": "javascript", "ts": "typescript", "py": "python", "python3": "python", "sh": "bash"}
# A kernel for the second language also runs the first one, if that has no kernel of its own.
FALLBACK_LANGUAGES = {"javascript": "typescript"}
# Where R finds packages: the operator's, the distribution's, and its own.
R_LIBRARIES = ("/usr/local/lib/R/site-library", "/usr/lib/R/site-library", "/usr/lib/R/library", "/usr/local/lib/R/library")


class Spec:
    def __init__(self, name, directory, content, starter=jupyter):
        self.name = name
        # The module that starts the kernel.
        self.starter = starter
        self.directory = directory
        self.argv = [str(part) for part in content.get("argv", [])]
        self.language = str(content.get("language", name)).lower()
        self.display = str(content.get("display_name", name))
        self.interrupt_mode = content.get("interrupt_mode", "signal")
        self.env = {str(key): str(value) for key, value in (content.get("env") or {}).items()}


def directories():
    home = os.path.expanduser("~")
    found = [entry for entry in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if entry]
    found += [
        os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local/share"), "jupyter"),
        os.path.join(sys.prefix, "share/jupyter"),
        "/usr/local/share/jupyter",
        "/usr/share/jupyter",
    ]
    return [os.path.join(entry, "kernels") for entry in found]


def find_all():
    registered, others = registered_specs(), list(unregistered())
    if not jupyter.is_available():
        # They cannot start, so kernels of our own take their place.
        ours = [spec.language for spec in others if spec.starter is not jupyter]
        registered = [spec for spec in registered if not any(serves(spec, language) for language in ours)]
    missing = [spec for spec in others if not any(serves(known, spec.language) for known in registered)]
    return registered + missing


def registered_specs():
    """The first spec of each name wins, as in Jupyter."""
    found = {}
    for directory in directories():
        for name in sorted(list_directory(directory)):
            spec = read(name, os.path.join(directory, name))
            if spec is not None:
                found.setdefault(name.lower(), spec)
    return list(found.values())


def unregistered():
    """Java if there is a JDK, JavaScript if there is Node.js, and R if it has IRkernel: the package of a library need not
    register a kernel."""
    java = java_kernel.find_java()
    if java is not None:
        argv = [java, *java_kernel.OPTIONS, java_kernel.PROGRAM]
        yield Spec(java_kernel.NAME, "", {"argv": argv, "language": "java", "display_name": "Java"}, java_kernel)
    node = node_kernel.find_node()
    if node is not None:
        argv = [node, *node_kernel.OPTIONS, node_kernel.PROGRAM]
        yield Spec(node_kernel.NAME, "", {"argv": argv, "language": "javascript", "display_name": "Node.js"}, node_kernel)
    if shutil.which("R") and any(os.path.isdir(os.path.join(library, "IRkernel")) for library in R_LIBRARIES):
        argv = ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"]
        yield Spec("ir", "", {"argv": argv, "language": "R", "display_name": "R"})


def serves(spec, language):
    return spec.language in (language, FALLBACK_LANGUAGES.get(language))


def list_directory(directory):
    try:
        return os.listdir(directory)
    except OSError:
        return []


def read(name, directory):
    try:
        with open(os.path.join(directory, "kernel.json"), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    spec = Spec(name, directory, content) if isinstance(content, dict) else None
    return spec if spec is not None and spec.argv else None


def resolve(wanted):
    """The spec for a language or a spec's name, or None. Ignores case. A name also means a spec that another one hides."""
    name = ALIASES.get(wanted.lower(), wanted.lower())
    found = find_all()
    spoken = by_language(found, name) or by_language(found, FALLBACK_LANGUAGES.get(name))
    return by_name(found, name) or spoken or by_name(list(unregistered()), name)


def by_name(found, name):
    return next((spec for spec in found if spec.name.lower() == name), None)


def by_language(found, language):
    return next((spec for spec in found if spec.language == language), None)


def print_list():
    rows = [{"name": spec.name, "language": spec.language, "display": spec.display} for spec in find_all()]
    sys.stdout.write(json.dumps(rows) + "\n")
    return 0
