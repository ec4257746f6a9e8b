"""The way of a zygote's fork into a sandbox.

    first  (outside)            joins the cgroups and namespaces, forks, waits for word, reports failures
    second (in the pid ns)      forks and ends at once, so that the guest's init adopts the third
    third  (in the pid ns)      drops every right, then is the mother; it can be reaped by the guest

Each step has a name; a failing one ends the way and its name is reported. The third process has no descriptor from
outside left when user code can first run.
"""

import os
import resource
import signal
import socket
import sys
import tempfile

from . import mother, syscalls, wire

MAX_PROGRAM_BYTES = 8 * 4096


class Request:
    """What was asked, checked; raises ValueError, TypeError or KeyError for nonsense."""

    def __init__(self, message, fds):
        self.id = message.get("id")
        self.uid, self.gid = int(message["uid"]), int(message["gid"])
        self.groups = [int(group) for group in message.get("groups") or []]
        self.home = str(message.get("home") or "/")
        self.kept = frozenset(int(capability) for capability in message.get("caps_kept") or [])
        self.limits = {str(name): value for name, value in (message.get("rlimits") or {}).items()}
        names = [str(name) for name in message["namespaces"]]
        cgroups = int(message["cgroups"])
        if not 0 <= cgroups or len(fds) != cgroups + len(names) + 2:
            raise ValueError("%d descriptors do not fit the request" % len(fds))
        unknown = set(names) - set(syscalls.NAMESPACES)
        if unknown:
            raise ValueError("unknown namespaces %s" % sorted(unknown))
        self.cgroups = fds[:cgroups]
        # The user namespace first: it gives the rights to enter the others.
        self.namespaces = sorted(zip(names, fds[cgroups:-2]), key=lambda pair: pair[0] != "user")
        self.program, self.socket = fds[-2], fds[-1]


class StepFailed(Exception):
    def __init__(self, step, problem):
        super().__init__(str(problem))
        self.step = step


def failure(request_id, step, problem):
    return {"op": "failed", "id": request_id, "step": step, "error": str(problem)}


def step(name, function, *arguments):
    try:
        return function(*arguments)
    except (OSError, ValueError, OverflowError) as problem:
        raise StepFailed(name, problem) from problem


def first(connection, interpreter, request):
    try:
        program = step("seccomp", read_program, request.program)
        step("cgroup", join_cgroups, request.cgroups)
        for name, fd in request.namespaces:
            step("setns %s" % name, syscalls.setns, fd, name)
        problem = step("fork", fork_and_wait, interpreter, request, program)
        if problem:
            failed_step, _, text = problem.partition("\0")
            raise StepFailed(failed_step, text)
    except StepFailed as failed:
        wire.send_packet(connection, failure(request.id, failed.step, failed))
        return 1
    return 0


def read_program(fd):
    return os.pread(fd, MAX_PROGRAM_BYTES, 0)


def join_cgroups(files):
    for fd in files:
        os.write(fd, b"0")


def fork_and_wait(interpreter, request, program):
    """Returns what the third process said before it gave up, or nothing when all went well."""
    words, say = os.pipe()
    child = os.fork()
    if child == 0:
        second(interpreter, request, program, say)
    os.close(say)
    os.waitpid(child, 0)
    with os.fdopen(words, "rb") as heard:
        return heard.read().decode("utf-8", "replace")


def second(interpreter, request, program, say):
    """Never returns."""
    status = 1
    try:
        wire.close_except({request.socket, say})
        if os.fork() == 0:
            third(interpreter, request, program, say)
        status = 0
    finally:
        os._exit(status)


def third(interpreter, request, program, say):
    """Never returns."""
    status = 1
    try:
        become_user(request, program)
        os.close(say)
        status = mother.serve(socket.socket(fileno=request.socket), interpreter)
    except StepFailed as failed:
        os.write(say, ("%s\0%s" % (failed.step, failed)).encode())
    finally:
        os._exit(status)


def become_user(request, program):
    """Gives up every right, in the order in which rights are needed to give up others."""
    step("session", os.setsid)
    step("keyring", syscalls.join_session_keyring)
    step("null", open_null)
    os.umask(0o022)
    step("rlimits", set_limits, request.limits)
    step("seccomp", syscalls.load_filter, program)
    step("bounding set", syscalls.limit_bounding_set, request.kept)
    step("groups", os.setgroups, request.groups)
    step("gid", os.setresgid, request.gid, request.gid, request.gid)
    step("uid", os.setresuid, request.uid, request.uid, request.uid)
    # Not left to the change of ids: an id that was not mapped is not the root whose rights that would clear.
    step("capabilities", syscalls.set_capabilities, request.kept if request.uid == 0 else ())
    step("dumpable", syscalls.set_dumpable)
    step("home", os.chdir, request.home)
    forget_outside(request.home)


def open_null():
    """0, 1 and 2, which were closed with the rest; these are the sandbox's own."""
    for wanted in (0, 1, 2):
        fd = os.open("/dev/null", os.O_RDWR)
        if fd != wanted:
            raise OSError(9, "descriptor %d was not free" % wanted)
        os.set_inheritable(fd, True)


def set_limits(limits):
    # A piped core_pattern runs outside and is stopped only by 1, not by 0.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    for name, (soft, hard) in limits.items():
        number = getattr(resource, "RLIMIT_" + name.upper(), None)
        if number is None:
            raise ValueError("unknown limit %s" % name)
        try:
            resource.setrlimit(number, (soft, hard))
        except (PermissionError, ValueError):
            # Raising one needs a right that the host itself may lack.
            pass


def forget_outside(home):
    os.environ.clear()
    os.environ["HOME"] = home
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, lambda *_: None)
    forget_directories(sys.modules.get("matplotlib"))


def forget_directories(matplotlib):
    """It remembers its directories, which are below the home of now."""
    for name in ("get_configdir", "get_cachedir", "_get_config_or_cache_dir"):
        clear = getattr(getattr(matplotlib, name, None), "cache_clear", None)
        if clear is not None:
            clear()
