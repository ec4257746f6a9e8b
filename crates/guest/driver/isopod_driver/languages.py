"""Code that sets and unsets environment variables, for each language; it runs as a silent cell."""

import json


def assignments(language, kernel_name, wanted, removed):
    """Code that sets `wanted` and removes `removed`, or None for an unknown language."""
    write = WRITERS.get("deno" if "deno" in kernel_name.lower() else language)
    if write is None or not (wanted or removed):
        return None
    return "\n".join(
        [write(name, value) for name, value in wanted.items()] + [write(name, None) for name in removed]
    )


def in_deno(name, value):
    if value is None:
        return "Deno.env.delete(%s);" % json.dumps(name)
    return "Deno.env.set(%s, %s);" % (json.dumps(name), json.dumps(value))


def in_node(name, value):
    if value is None:
        return "delete process.env[%s];" % json.dumps(name)
    return "process.env[%s] = %s;" % (json.dumps(name), json.dumps(value))


def in_bash(name, value):
    if value is None:
        return "unset %s" % shell_name(name)
    return "export %s='%s'" % (shell_name(name), value.replace("'", "'\\''"))


def shell_name(name):
    # The name is not quoted in the code, so it must be nothing but a name.
    return "".join(letter for letter in name if letter.isalnum() or letter == "_") or "_"


def in_r(name, value):
    if value is None:
        return "Sys.unsetenv(%s)" % json.dumps(name)
    return "do.call(Sys.setenv, setNames(list(%s), %s))" % (json.dumps(value), json.dumps(name))


def in_java(name, value):
    # Java cannot change its environment. E2B sets properties, and so do we.
    if value is None:
        return "System.clearProperty(%s);" % json.dumps(name)
    return "System.setProperty(%s, %s);" % (json.dumps(name), json.dumps(value))


def in_python(name, value):
    if value is None:
        return "__import__('os').environ.pop(%r, None)" % name
    return "__import__('os').environ[%r] = %r" % (name, value)


WRITERS = {
    "deno": in_deno,
    "javascript": in_node,
    "typescript": in_node,
    "bash": in_bash,
    "r": in_r,
    "java": in_java,
    "python": in_python,
}
