# Case 12. The neighbour offers things under these names; HOST_SOCKET, HOST_PIDS and STATE come from the test.
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
say("processes in sight", "held" if len(pids) < 12 else "broken", "only its own" if len(pids) < 12 else str(pids))
for pid in HOST_PIDS:
    if pid not in pids:
        refused("signal a process outside", lambda: os.kill(pid, signal.SIGKILL), {errno.ESRCH})
        refused("open a process outside", lambda: call(434, pid, 0), {errno.ESRCH})
        refused("read /proc of a process outside", lambda: os.listdir(f"/proc/{pid}"), {errno.ENOENT})
        refused("change limits of a process outside", lambda: call(302, pid, 7, 0, 0), {errno.ESRCH})


def connect(name):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(name)


refused("abstract socket of the neighbour", lambda: connect("\0neighbour"), {errno.ECONNREFUSED})
refused("abstract socket of the host", lambda: connect("\0" + HOST_SOCKET), {errno.ECONNREFUSED})
refused("System V memory of the neighbour", lambda: call(29, 4711, 0, 0), {errno.ENOENT})
refused("System V semaphores of the neighbour", lambda: call(64, 4711, 0, 0), {errno.ENOENT})
refused("System V messages of the neighbour", lambda: call(68, 4711, 0), {errno.ENOENT})
refused("POSIX messages of the neighbour", lambda: call(240, ctypes.c_char_p(b"neighbour"), os.O_RDWR, 0, 0), {errno.ENOENT})
refused("keyring of the session", lambda: call(250, 0, -3, 0))
refused("keyring of the user", lambda: call(250, 0, -4, 0))
refused("add a key", lambda: call(248, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"k"), ctypes.c_char_p(b"v"), 1, -4))
for place in ["/dev/shm", "/tmp", "/run/user", "/home/user"]:
    refused(f"file of the neighbour in {place}", lambda: os.stat(place + "/neighbours-file"), {errno.ENOENT, errno.EACCES})
for path in [STATE, STATE + "/disk", STATE + "/homes", "/var/lib/isopod", "/run/isopod", "/new", "/w", "/r0"]:
    refused("the node's files", lambda: os.stat(path), {errno.ENOENT})


def watch(path):
    """Somebody else's use of a shared device must not be seen."""
    fd = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(fd, path, 0xFFF) >= 0
    time.sleep(0.3)
    try:
        return len(os.read(fd, 4096))
    except BlockingIOError:
        return 0


for path in [b"/dev/null", b"/dev/zero", b"/usr/bin/env", b"/etc/passwd"]:
    gives(f"watch the neighbour use {path.decode()}", lambda: watch(path), 0, "nothing seen")


def lock():
    with open("/dev/null") as null:
        fcntl.flock(null, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "own"


gives("the neighbour's lock on /dev/null", lock, "own", "not felt")
