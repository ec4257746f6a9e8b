"""How a fork of the zygote enters a sandbox.

       first  (outside)            asks for admission, is moved into the cgroups by the server, enters the namespaces, forks
       second (in the pid ns)      forks and exits at once, so that the guest, as pid 1, adopts the third process
       third  (in the pid ns)      drops all privileges, lets the server check that, then becomes the forkserver

The first and the third process talk to the server over a socket of their own, the admission, and continue only when it
allows them to. Each step has a name. If a step fails, the process reports its name there and exits. The third process has
closed every descriptor from outside before user code can run.
"""

import os
import resource
import signal
import socket
import sys
import tempfile

from . import forkserver, syscalls, wire

MAX_PROGRAM_BYTES = 8 * 4096
GO = b"go"


class Request:
    """A validated request. Raises ValueError, TypeError or KeyError if it is malformed."""

    def __init__(self, message, fds):
        self.uid, self.gid = int(message["uid"]), int(message["gid"])
        self.groups = [int(group) for group in message.get("groups") or []]
        self.home = str(message.get("home") or "/")
        self.kept = frozenset(int(capability) for capability in message.get("caps_kept") or [])
        self.limits = {str(name): value for name, value in (message.get("rlimits") or {}).items()}
        names = [str(name) for name in message["namespaces"]]
        if len(fds) != len(names) + 3:
            raise ValueError("%d descriptors do not fit the request" % len(fds))
        unknown = set(names) - set(syscalls.NAMESPACES)
        if unknown:
            raise ValueError("unknown namespaces %s" % sorted(unknown))
        # Enter the user namespace first: it gives the right to enter the others. Enter the mount namespace last: after that,
        # Python opens the sandbox's files.
        self.namespaces = sorted(zip(names, fds[:-3]), key=lambda pair: (pair[0] == "mnt") - (pair[0] == "user"))
        self.program, self.admission, self.socket = fds[-3], socket.socket(fileno=fds[-2]), fds[-1]


class StepFailed(Exception):
    def __init__(self, step, problem):
        super().__init__(str(problem))
        self.step = step


def failure(step, problem):
    return {"op": "failed", "step": step, "error": str(problem)}


def step(name, function, *arguments):
    try:
        return function(*arguments)
    except (OSError, ValueError, OverflowError) as problem:
        raise StepFailed(name, problem) from problem


def first(interpreter, request):
    """Returns an exit status: 1 if it did not enter the sandbox."""
    try:
        program = step("seccomp", read_program, request.program)
        ask(request.admission, "outside")
        for name, fd in request.namespaces:
            step("setns %s" % name, syscalls.setns, fd, name)
        child = step("fork", os.fork)
    except StepFailed as failed:
        return report(request.admission, failed)
    if child == 0:
        second(interpreter, request, program)
    os.waitpid(child, 0)
    return 0


def read_program(fd):
    return os.pread(fd, MAX_PROGRAM_BYTES, 0)


def ask(admission, where):
    """Tells the server where this process is, and waits for permission to continue. Exits if the server is gone."""
    step(where, wire.send_packet, admission, {"op": where})
    if step(where, admission.recv, len(GO)) != GO:
        os._exit(1)


def report(admission, failed):
    try:
        wire.send_packet(admission, failure(failed.step, failed))
    except OSError:
        # The server is gone.
        pass
    return 1


def second(interpreter, request, program):
    """Never returns."""
    status = 1
    try:
        wire.close_except({request.socket, request.admission.fileno()})
        if os.fork() == 0:
            third(interpreter, request, program)
        status = 0
    finally:
        os._exit(status)


def third(interpreter, request, program):
    """Never returns."""
    status = 1
    try:
        become_user(request, program)
        ask(request.admission, "inside")
        request.admission.close()
        status = forkserver.serve(socket.socket(fileno=request.socket), interpreter)
    except StepFailed as failed:
        status = report(request.admission, failed)
    finally:
        os._exit(status)


def become_user(request, program):
    """Drops all privileges, in an order in which each step still has the privileges it needs."""
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
    # A change of ids clears capabilities only if the old id is root, and the zygote's id may not be mapped here.
    step("capabilities", syscalls.set_capabilities, request.kept if request.uid == 0 else ())
    step("dumpable", syscalls.set_dumpable)
    step("home", os.chdir, request.home)
    forget_outside(request.home)


def open_null():
    """Opens 0, 1 and 2, which were closed with the rest, on the sandbox's /dev/null."""
    for wanted in (0, 1, 2):
        fd = os.open("/dev/null", os.O_RDWR)
        if fd != wanted:
            raise OSError(9, "descriptor %d was not free" % wanted)
        os.set_inheritable(fd, True)


def set_limits(limits):
    # A core_pattern with a pipe runs its program outside the sandbox. Only a limit of 1 prevents that, not 0.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    for name, (soft, hard) in limits.items():
        number = getattr(resource, "RLIMIT_" + name.upper(), None)
        if number is None:
            raise ValueError("unknown limit %s" % name)
        try:
            resource.setrlimit(number, (soft, hard))
        except (PermissionError, ValueError):
            # Raising a limit needs a capability that the host itself may lack.
            pass


def forget_outside(home):
    os.environ.clear()
    os.environ["HOME"] = home
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, lambda *_: None)
    forget_directories(sys.modules.get("matplotlib"))


def forget_directories(matplotlib):
    """matplotlib caches its directories, which are below the home directory of the zygote."""
    for name in ("get_configdir", "get_cachedir", "_get_config_or_cache_dir"):
        clear = getattr(getattr(matplotlib, name, None), "cache_clear", None)
        if clear is not None:
            clear()
