"""Holds kernel objects of every kind, in one process each, and says which of them still work once the file `go` is there.

Argument: names of kinds, or nothing for all that can be saved. Each line of the file `verdict` has a kind, and "ok" or what is wrong with it.
"""

import ctypes, fcntl, json, mmap, os, pty, resource, select, signal, socket, sqlite3, struct, subprocess, sys, threading, time, traceback

libc = ctypes.CDLL(None, use_errno=True)
HOME = os.getcwd()
NONBLOCK, CREATED = 0o4000, 0x100
KINDS, REFUSED = {}, {}


def kind(hold):
    """A generator that holds something until its `yield`, and then returns whether it works."""
    KINDS[hold.__name__] = hold
    return hold


def refused(hold):
    """One that cannot be saved."""
    REFUSED[hold.__name__] = hold
    return hold


def until(condition):
    """Waits for it. Returns whether it came true."""
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@kind
def threads():
    counts = [0] * 8

    def count(number):
        while True:
            counts[number] += 1
            time.sleep(0.01)

    for number in range(len(counts)):
        threading.Thread(target=count, args=(number,), daemon=True).start()
    yield
    before = list(counts)
    return until(lambda: all(now > then for now, then in zip(counts, before)))


@kind
def epoll_with_eventfd_and_timerfd():
    epoll, event, timer = select.epoll(), libc.eventfd(3, NONBLOCK), libc.timerfd_create(1, 0)
    libc.timerfd_settime(timer, 0, struct.pack("qqqq", 0, 50_000_000, 0, 50_000_000), None)
    epoll.register(event, select.EPOLLIN)
    epoll.register(timer, select.EPOLLIN)
    yield
    # What it counts is kept, and the timer goes on.
    fired = lambda: {found for found, _ in epoll.poll(1)} == {event, timer}
    return until(fired) and os.read(event, 8) == struct.pack("Q", 3) and len(os.read(timer, 8)) == 8


def watch(place):
    os.makedirs(place, exist_ok=True)
    watcher = libc.inotify_init1(NONBLOCK)
    assert libc.inotify_add_watch(watcher, place.encode(), CREATED) > 0
    yield
    path = f"{place}/new"
    open(path, "w").close()
    os.unlink(path)
    return b"new\0" in os.read(watcher, 4096)


@kind
def inotify_below_home():
    return (yield from watch(f"{HOME}/watched/below"))


@kind
def inotify_in_memory():
    return (yield from watch("/tmp/watched"))


@kind
def inotify_below_the_working_directory():
    os.makedirs("/var/tmp/work", exist_ok=True)
    os.chdir("/var/tmp/work")
    return (yield from watch("/var/tmp/work/watched"))


@refused
def inotify_elsewhere():
    return (yield from watch("/var/tmp/elsewhere"))


@kind
def flock():
    """Whoever opens the file anew cannot have the lock, and its holder can give it up."""
    held, path = open(f"{HOME}/lock", "w"), f"{HOME}/lock"
    fcntl.flock(held, fcntl.LOCK_EX)
    yield
    with open(path, "w") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "somebody else has the lock"
        except BlockingIOError:
            fcntl.flock(held, fcntl.LOCK_UN)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


@kind
def record_locks():
    """As fcntl makes them: another process sees who has which bytes."""
    held = open(f"{HOME}/records", "w+")
    held.write("x" * 100)
    held.flush()
    fcntl.lockf(held, fcntl.LOCK_EX, 10, 20)
    yield
    question = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    reader, writer = os.pipe()
    if os.fork() == 0:
        with open(f"{HOME}/records", "r+") as other:
            os.write(writer, fcntl.fcntl(other, fcntl.F_GETLK, question))
        os._exit(0)
    kind, _, start, length, holder = struct.unpack("hhqqi4x", os.read(reader, 100))
    os.wait()
    return (kind, start, length, holder) == (fcntl.F_WRLCK, 20, 10, os.getpid()) or (kind, start, length, holder)


@kind
def deleted_file():
    """With what others read and write of it."""
    held, again = open(f"{HOME}/gone", "w+b", 0), open(f"{HOME}/gone", "rb", 0)
    held.write(b"text" * 100_000)
    os.unlink(f"{HOME}/gone")
    again.seek(4)
    yield
    held.write(b"more")
    return again.read() == b"text" * 99_999 + b"more" and not os.path.exists(f"{HOME}/gone")


@kind
def renamed_file():
    held = open(f"{HOME}/old-name", "w+b", 0)
    held.write(b"text")
    os.rename(f"{HOME}/old-name", f"{HOME}/new-name")
    yield
    held.write(b" more")
    return open(f"{HOME}/new-name", "rb").read() == b"text more"


@kind
def files_in_memory():
    """Of /tmp and /dev/shm, open and mapped."""
    file, shared = open("/tmp/held", "w+b", 0), open("/dev/shm/held", "w+b", 0)
    for held in (file, shared):
        held.write(b"text")
    mapped = mmap.mmap(shared.fileno(), 4)
    yield
    mapped[:] = b"more"
    file.seek(0)
    return file.read() == b"text" and open("/dev/shm/held", "rb").read() == b"more"


@kind
def posix_shared_memory():
    from multiprocessing import resource_tracker, shared_memory

    resource_tracker.register = lambda *_: None
    held = shared_memory.SharedMemory(name="held-segment", create=True, size=4096)
    held.buf[:5] = b"kept!"
    child = os.fork()
    if child == 0:
        while True:
            held.buf[8] = (held.buf[8] + 1) % 256
            time.sleep(0.01)
    yield
    before = held.buf[8]
    counts = until(lambda: held.buf[8] != before)
    os.kill(child, signal.SIGKILL)
    same = shared_memory.SharedMemory(name="held-segment")
    return counts and bytes(same.buf[:5]) == b"kept!"


@kind
def shared_anonymous_memory():
    shared = mmap.mmap(-1, 4096)
    if os.fork() == 0:
        while True:
            shared[0] = (shared[0] + 1) % 256
            time.sleep(0.01)
    yield
    before = shared[0]
    return until(lambda: shared[0] != before)


@refused
def system_v_shared_memory():
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(0x15090D, 4096, 0o1600)
    place = libc.shmat(number, None, 0)
    ctypes.memmove(place, b"kept", 4)
    yield
    again = libc.shmat(libc.shmget(0x15090D, 4096, 0o600), None, 0)
    return ctypes.string_at(place, 4) == b"kept" and ctypes.string_at(again, 4) == b"kept"


@kind
def memfd():
    held = os.memfd_create("held", os.MFD_ALLOW_SEALING)
    os.write(held, b"text")
    # F_ADD_SEALS, F_SEAL_GROW
    fcntl.fcntl(held, 1033, 4)
    mapped = mmap.mmap(held, 4)
    yield
    mapped[:] = b"more"
    try:
        os.pwrite(held, b"x", 100)
        return "its seals are gone"
    except PermissionError:
        return os.pread(held, 10, 0) == b"more"


@kind
def pidfd():
    child = subprocess.Popen(["sleep", "1000"])
    held = os.pidfd_open(child.pid)
    yield
    signal.pidfd_send_signal(held, signal.SIGKILL)
    return child.wait() == -signal.SIGKILL and select.select([held], [], [], 10)[0] == [held]


@kind
def signalfd():
    mask = struct.pack("Q", 1 << (signal.SIGUSR1 - 1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    held = libc.syscall(289, -1, mask, 8, 0)
    yield
    os.kill(os.getpid(), signal.SIGUSR1)
    return len(os.read(held, 200)) == 128


@kind
def pending_signals():
    seen = []
    signal.signal(signal.SIGUSR2, lambda *_: seen.append(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    yield
    assert not seen and signal.SIGUSR2 in signal.sigpending()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    return until(lambda: seen == [1])


@kind
def interval_timer():
    count = [0]
    signal.signal(signal.SIGALRM, lambda *_: count.__setitem__(0, count[0] + 1))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    yield
    before = count[0]
    return until(lambda: count[0] > before + 2)


@kind
def terminal():
    """With its size, and a shell that leads its session."""
    import termios

    child, main = pty.fork()
    if child == 0:
        os.execvp("bash", ["bash", "--norc"])
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))

    def read_until(what):
        seen = b""
        while what not in seen and select.select([main], [], [], 20)[0]:
            seen += os.read(main, 4096)
        return seen

    os.write(main, b"echo $((40+1))\n")
    assert b"41" in read_until(b"41")
    yield
    os.write(main, b"stty size; echo $((40+2))\n")
    seen = read_until(b"42")
    return b"33 99" in seen and b"42" in seen or seen.decode()


@kind
def pipes():
    """With what is in them, between parent and child."""
    child = subprocess.Popen(["bash", "-c", "read line; read more; echo $line $more"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    reader, writer = os.pipe()
    os.write(writer, b"kept")
    child.stdin.write(b"first\n")
    child.stdin.flush()
    yield
    return child.communicate(b"second\n", timeout=20)[0] == b"first second\n" and os.read(reader, 10) == b"kept"


@kind
def named_pipe():
    os.mkfifo(f"{HOME}/fifo")
    reader = os.open(f"{HOME}/fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(f"{HOME}/fifo", os.O_WRONLY)
    os.write(writer, b"kept")
    yield
    os.write(writer, b" and more")
    return os.read(reader, 100) == b"kept and more"


@kind
def unix_sockets():
    """A listener, a pair with a message that waits, datagrams."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{HOME}/listener")
    listener.listen(4)
    one, other = socket.socketpair()
    one.send(b"kept")
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.send(b"one")
    sender.send(b"two")
    yield
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"{HOME}/listener")
    accepted, _ = listener.accept()
    client.send(b"new")
    return [accepted.recv(9), other.recv(9), receiver.recv(9), receiver.recv(9)] == [b"new", b"kept", b"one", b"two"]


@kind
def tcp_sockets():
    """A listener, and a connection with bytes on their way in both directions."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    server.send(b"down")
    client.send(b"up")
    # It keeps what is set.
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    yield
    client.send(b" more")
    new = socket.create_connection(listener.getsockname())
    listener.accept()[0].send(b"new")
    got = b""
    while len(got) < 7:
        got += server.recv(100)
    nodelay = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    return client.recv(100) == b"down" and got == b"up more" and new.recv(100) == b"new" and nodelay == 1


@kind
def udp_sockets():
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    yield
    sender.send(b"new")
    return receiver.recv(100) == b"new"


@kind
def limits():
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    # One of each kind is lower than what it was started with.
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 31))
    before = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    yield
    after = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    changed = {name: (before[name], after[name]) for name in names if before[name] != after[name]}
    return not changed or changed


@kind
def nice_mask_and_directory():
    os.nice(5)
    os.umask(0o027)
    os.makedirs(f"{HOME}/where/it/is")
    os.chdir(f"{HOME}/where/it/is")
    yield
    return (os.nice(0), os.umask(0), os.getcwd()) == (5, 0o027, f"{HOME}/where/it/is")


@kind
def orphan():
    """Whose parent has ended before. It leads a session."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            os.write(writer, b"x")
            time.sleep(0.01)
    os.close(writer)
    os.wait()
    os.read(reader, 1)
    yield
    os.set_blocking(reader, False)
    os.read(reader, 1 << 20)
    os.set_blocking(reader, True)
    return os.read(reader, 1) == b"x"


@kind
def zombie():
    """A child that has ended, and was not waited for."""
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert until(lambda: " Z " in open(f"/proc/{child}/stat").read())
    yield
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@kind
def database():
    base = sqlite3.connect(f"{HOME}/base.db")
    base.execute("pragma journal_mode=wal")
    base.execute("create table t(a)")
    base.execute("insert into t values(1)")
    base.commit()
    # Within a transaction.
    base.execute("insert into t values(2)")
    yield
    base.commit()
    return sqlite3.connect(f"{HOME}/base.db").execute("select count(*) from t").fetchone()[0] == 2


def play(hold, say):
    """Holds it in this process until it is told to go on."""
    try:
        held = hold()
        next(held)
        say("holds")
        while not os.path.exists(f"{HOME}/go"):
            time.sleep(0.02)
        try:
            next(held)
        except StopIteration as end:
            return "ok" if end.value is True else f"{end.value}"
        return "it did not come to an end"
    except BaseException:
        return traceback.format_exc()[-600:].replace("\n", " / ")


def main(chosen):
    readers = {}
    for name in chosen:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setpgid(0, 0)
            say = lambda text: os.write(writer, json.dumps(text).encode() + b"\n")
            say(play((KINDS | REFUSED)[name], say))
            os._exit(0)
        os.close(writer)
        readers[name] = os.fdopen(reader)
    for name, reader in readers.items():
        held = json.loads(reader.readline())
        assert held == "holds", f"{name}: {held}"
    with open("ready.new", "w") as file:
        file.write(" ".join(chosen))
    os.rename("ready.new", "ready")
    verdicts = [f"{name} {json.loads(reader.readline())}" for name, reader in readers.items()]
    with open("verdict.new", "w") as file:
        file.write("\n".join(verdicts))
    os.rename("verdict.new", "verdict")


main(sys.argv[1:] or list(KINDS))
