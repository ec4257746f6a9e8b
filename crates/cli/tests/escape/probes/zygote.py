# Runs in a zygote, before anything of ours: `zz_attack.pth` imports it. It tries what a process there should not be able to
# do to a process of the host, and then, with every order, what the descriptors that come along are good for.
import ctypes
import errno
import json
import os
import signal
import socket
import sys
import time

ATTACH = 16
PIDFD_GETFD = 438
PROCESS_VM_READV = 310
REPORT = "/tmp/zz_report.json"
# What a second process, which races with every sandbox that is made, has to say.
RACE = "/tmp/zz_race.json"
# Longer than the test takes, which ends it.
RACE_SECONDS = 600
# What a descriptor of an order may be, by the file system that it is of.
KINDS = {
    0x6E736673: "a namespace",
    0x01021994: "a file in memory",
    0x534F434B: "a socket",
    0x27E0EB: "a cgroup",
    0x63677270: "a cgroup",
}
libc = ctypes.CDLL(None, use_errno=True)
report = {"orders": 0, "kinds": []}
outcomes = {}


def attempt(name, function):
    """One success is enough, however often it fails before and afterwards."""
    try:
        function()
        outcome = "done"
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error.errno))
    seen = outcomes.setdefault(name, set())
    seen.add(outcome)
    report[name] = "done" if "done" in seen else "/".join(sorted(seen))


def ptrace(pid):
    if libc.ptrace(ATTACH, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def system_call(number, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call")
    return result


def read_memory(pid):
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    system_call(PROCESS_VM_READV, pid, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0)


def take_descriptor(pid, fd=0):
    process = os.pidfd_open(pid)
    try:
        return system_call(PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)


def race():
    """Looks for processes as they are started, and takes what descriptors it can get."""
    os.closerange(0, 64)
    highest, looked, taken = os.getpid(), 0, 0
    end = time.monotonic() + RACE_SECONDS
    while time.monotonic() < end:
        for pid in range(highest - 64, highest + 1500):
            if pid == os.getpid():
                continue
            try:
                os.close(os.pidfd_open(pid))
            except OSError:
                continue
            highest, looked = max(highest, pid), looked + 1
            for fd in range(24):
                try:
                    os.close(take_descriptor(pid, fd))
                    taken += 1
                except OSError:
                    pass
        with open(RACE + ".new", "w") as file:
            json.dump({"looked": looked, "taken": taken}, file)
        os.rename(RACE + ".new", RACE)
    os._exit(0)


def fill_the_disk():
    path = "/home/user/fill"
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(1024):
                file.write(b"x" * (1 << 20))
    finally:
        os.unlink(path)


def trace_child():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        ptrace(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def save():
    with open(REPORT + ".new", "w") as file:
        json.dump(report, file)
    os.rename(REPORT + ".new", REPORT)


def attack(victim):
    attempt("signal a process of the host", lambda: os.kill(victim, signal.SIGKILL))
    attempt("signal it by a pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL))
    attempt("trace it", lambda: ptrace(victim))
    attempt("take a descriptor of it", lambda: take_descriptor(victim))
    attempt("read its memory", lambda: read_memory(victim))
    # Its own user and its own process: only the filter stands before these.
    attempt("take a descriptor of its own", lambda: take_descriptor(os.getpid()))
    attempt("read its own memory", lambda: read_memory(os.getpid()))
    attempt("trace a child of its own", trace_child)
    attempt("find it in /proc", lambda: os.stat("/proc/%d" % victim))
    attempt("change its limits", lambda: __import__("resource").prlimit(victim, 7, (1, 1)))
    attempt("change its priority", lambda: os.setpriority(os.PRIO_PROCESS, victim, 19))
    attempt("talk to the network", lambda: socket.create_connection(("192.0.2.1", 80), 1))
    attempt("become root", lambda: os.setuid(0))
    attempt("write a gigabyte", fill_the_disk)


def kind_of(fd):
    buffer = ctypes.create_string_buffer(256)
    if libc.fstatfs(fd, buffer) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs")
    magic = ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
    return KINDS.get(magic, hex(magic))


def misuse(fd, victim):
    """Writes the victim's pid to it, changes it, and opens files beside it."""
    kind = kind_of(fd)
    if kind not in report["kinds"]:
        report["kinds"] = sorted(report["kinds"] + [kind])
    # Those two are for speaking: a word of ours would only spoil the order.
    if kind != "a socket":
        attempt("write a pid to %s of an order" % kind, lambda: os.write(fd, b"%d" % victim))
    attempt("change %s of an order" % kind, lambda: os.ftruncate(fd, 0))
    attempt("open a group beside %s of an order" % kind, lambda: os.open("cgroup.procs", os.O_WRONLY, dir_fd=fd))


def catch_orders(victim):
    original = socket.recv_fds

    def recv_fds(*arguments):
        data, fds, flags, address = original(*arguments)
        for fd in fds:
            misuse(fd, victim)
        report["orders"] += bool(fds)
        save()
        return data, fds, flags, address

    socket.recv_fds = recv_fds


if "zygote" in sys.orig_argv:
    with open("/usr/lib/zz_victim") as file:
        pid = int(file.read())
    attack(pid)
    save()
    if os.fork() == 0:
        race()
    catch_orders(pid)
