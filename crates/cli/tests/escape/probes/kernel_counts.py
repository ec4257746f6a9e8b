# Takes all it can of what the kernel counts per user, as every user it can be, says how much, and holds it.
import ctypes, os, signal, sys, time

libc = ctypes.CDLL(None, use_errno=True)
RT = 40
SHM_LOCK, IPC_PRIVATE = 11, 0
PR_SET_PDEATHSIG = 1
# One process has too few descriptors to take all of a kind.
PROCESSES = 8


class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("flags", "maxmsg", "msgsize", "curmsgs", "a", "b", "c", "d")]


def until_refused(take, most):
    taken = 0
    while taken < most and take():
        taken += 1
    return taken


def queue():
    name = b"/q-%d-%d" % (os.getpid(), time.monotonic_ns())
    return libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(Attributes(0, 1, 64))) >= 0


def locked_page():
    segment = libc.shmget(IPC_PRIVATE, 4096, 0o600)
    return segment >= 0 and libc.shmctl(segment, SHM_LOCK, None) == 0


def queued_signal():
    return libc.sigqueue(os.getpid(), RT, None) == 0


def by_a_child(take, most):
    """What a child got, which holds it as long as this process lives."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        taken = until_refused(take, most)
        os.write(writer, b"%d" % taken)
        if taken:
            signal.pause()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        # Its copy of this end stays open.
        return int(pipe.raw.read(32) or 0)


def by_children(take, most):
    total = 0
    for _ in range(PROCESSES):
        taken = by_a_child(take, most - total)
        total += taken
        if not taken or total == most:
            break
    return total


def take_all(most):
    signal.pthread_sigmask(signal.SIG_BLOCK, [RT])
    taken = {
        "inotify": by_children(lambda: libc.inotify_init1(0) >= 0, most),
        "queues": by_children(queue, most),
        "signals": by_children(queued_signal, most),
        "pages": by_children(locked_page, most),
    }
    return " ".join("%s=%d" % pair for pair in taken.items())


def as_others(count, most):
    """A child for each of these users, each of which takes what it still gets."""
    for uid in range(2000, 2000 + count):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setresuid(uid, uid, uid)
            take_all(most)
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)


most, others, hold = map(int, sys.argv[1:])
print("took", take_all(most), flush=True)
if others and os.getuid() == 0:
    as_others(others, most)
print("all taken", flush=True)
if hold:
    time.sleep(hold)
