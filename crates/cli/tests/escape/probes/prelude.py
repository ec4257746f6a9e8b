# What every probe starts with. Each attempt runs in a process of its own, so that one cannot spoil the next, and ends in
# one line: name, "held" or "broken", and how.
import ctypes, errno, fcntl, os, signal, socket, stat, struct, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
FILTERED = {errno.EPERM, errno.ENOSYS}
CLOSED = FILTERED | {errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENXIO, errno.ESRCH, errno.ENODEV, errno.ENOTDIR}


def call(number, *arguments):
    """A system call by its number; numbers and buffers as arguments."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    words += [ctypes.c_long(0)] * (6 - len(words))
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call")
    return result


def say(name, verdict, how):
    os.write(1, f"{name}\t{verdict}\t{how}\n".encode())


def outcome(attempt):
    """Runs it in a child: ("error", errno), ("signal", number) or ("done", text)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            text = f"done {attempt()!r}"
        except OSError as error:
            text = f"error {error.errno or errno.EIO}"
        except BaseException as error:
            text = f"done {error!r}"
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "signal", os.WTERMSIG(status)
    kind, _, rest = text.partition(" ")
    return kind, int(rest) if kind == "error" else rest


def refused(name, attempt, allowed=FILTERED):
    """Must fail with one of these errors, or be killed for a forbidden call."""
    kind, value = outcome(attempt)
    if kind == "error" and value in allowed:
        say(name, "held", errno.errorcode[value])
    elif kind == "signal" and value == signal.SIGSYS:
        say(name, "held", "killed")
    elif kind == "error":
        say(name, "broken", f"got as far as {errno.errorcode.get(value, value)}")
    else:
        say(name, "broken", f"{kind} {value}")


def gives(name, attempt, expected, how):
    """Must work and give exactly this."""
    kind, value = outcome(attempt)
    good = kind == "done" and value == repr(expected)
    say(name, "held" if good else "broken", how if good else f"{kind} {value}")


def write_to(path, text=b"1"):
    fd = os.open(path, os.O_WRONLY)
    try:
        # A file that is masked takes everything and does nothing.
        found = os.fstat(fd)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3):
            raise OSError(errno.ENODEV, "masked")
        return os.write(fd, text)
    finally:
        os.close(fd)


def read_from(path, size=64):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = os.read(fd, size)
        if not data:
            raise OSError(errno.ENODEV, "empty")
        return data
    finally:
        os.close(fd)
