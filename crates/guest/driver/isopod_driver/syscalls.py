"""System calls that Python's standard library lacks, through libc. Each raises OSError with the name of the call."""

import ctypes
import os
import platform
import signal

libc = ctypes.CDLL(None, use_errno=True)

NUMBERS = {
    "x86_64": {"seccomp": 317, "keyctl": 250, "capset": 126},
    "aarch64": {"seccomp": 277, "keyctl": 219, "capset": 91},
}

NAMESPACES = {
    "time": 0x00000080,
    "mnt": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER = 1
FILTER_BYTES = 8
CAPABILITY_VERSION_3 = 0x20080522


class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def setns(fd, name):
    check("setns", libc.setns(ctypes.c_int(fd), ctypes.c_int(NAMESPACES[name])))


def join_session_keyring():
    """Joins a new, empty session keyring; the old one may hold keys of the host."""
    call("keyctl", ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None)


def load_filter(program):
    """Installs a seccomp program, given as bytes."""
    if not program or len(program) % FILTER_BYTES:
        raise OSError(22, "seccomp: the program has %d bytes" % len(program))
    code = ctypes.create_string_buffer(program, len(program))
    fprog = SockFprog(len(program) // FILTER_BYTES, ctypes.cast(code, ctypes.c_void_p))
    call("seccomp", ctypes.c_long(SECCOMP_SET_MODE_FILTER), ctypes.c_long(0), ctypes.byref(fprog))


def limit_bounding_set(kept):
    capability = 0
    while libc.prctl(PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) >= 0:
        if capability not in kept:
            check("prctl", libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0))
        capability += 1


def set_capabilities(kept):
    """Sets the effective and permitted capabilities to exactly these, and clears the inheritable ones."""
    data = (CapData * 2)()
    for capability in kept:
        word, bit = divmod(capability, 32)
        data[word].effective |= 1 << bit
        data[word].permitted |= 1 << bit
    call("capset", ctypes.byref(CapHeader(CAPABILITY_VERSION_3, 0)), ctypes.byref(data))


def set_dumpable():
    """Lets the process read its own /proc entries after a change of ids."""
    check("prctl", libc.prctl(PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0))


def end_with_parent():
    """Called between fork and exec: the operating system sends SIGKILL when the parent exits."""
    libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def call(name, *arguments):
    numbers = NUMBERS.get(platform.machine())
    if numbers is None:
        raise OSError(38, "%s: its number on %s is not known" % (name, platform.machine()))
    check(name, libc.syscall(ctypes.c_long(numbers[name]), *arguments))


def check(name, answer):
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))
