# Case 12: process ids of the host in what the kernel tells about descriptors, sockets and locks.
OWN = {int(name) for name in os.listdir("/proc") if name.isdigit()} | {os.getpid(), os.getppid()}
# The kernel's own limit: a larger number is no process id.
LAST_PID = 1 << 22


def foreign(numbers):
    """Those that may be process ids and are none of the sandbox."""
    return sorted({number for number in numbers if 0 < number <= LAST_PID and not os.path.exists(f"/proc/{number}") and number not in OWN})


def netlink_ports():
    # Ours may be among them, and one that the kernel gave us is our own process id.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.bind((0, 0))
        rows = [line.split() for line in open("/proc/net/netlink").read().splitlines()[1:]]
        assert any(int(row[2]) == s.getsockname()[0] for row in rows), "its own socket is not listed"
        return foreign(int(row[2]) for row in rows)


gives("port ids in /proc/net/netlink", netlink_ports, [], "none of a process of the host")


def descriptors():
    return [int(name) for name in os.listdir("/proc/self/fd")]


def owners():
    found = []
    for fd in descriptors():
        try:
            # F_GETOWN, and F_GETOWN_EX as (kind, id).
            found.append(abs(fcntl.fcntl(fd, 9)))
            found.append(struct.unpack("ii", fcntl.fcntl(fd, 16, bytes(8)))[1])
        except OSError:
            pass
    return foreign(found)


def peers():
    found = []
    for fd in descriptors():
        try:
            with socket.socket(fileno=os.dup(fd)) as s:
                found.append(struct.unpack("iII", s.getsockopt(socket.SOL_SOCKET, 17, 12))[0])
        except OSError:
            pass
    return foreign(found)


def infos():
    found = []
    for fd in descriptors():
        try:
            lines = open(f"/proc/self/fdinfo/{fd}").read().splitlines()
        except OSError:
            continue
        words = [line.split() for line in lines]
        found += [int(w[1]) for w in words if w[0] in ("Pid:", "NSpid:")]
        found += [int(w[5]) for w in words if w[0] == "lock:"]
    return foreign(found)


gives("owners of descriptors", owners, [], "none of a process of the host")
gives("peers of sockets", peers, [], "none of a process of the host")
gives("what fdinfo says", infos, [], "none of a process of the host")
refused("/proc/locks", lambda: read_from("/proc/locks"), CLOSED)


def status_ids():
    found = []
    for pid in os.listdir("/proc"):
        try:
            lines = open(f"/proc/{int(pid)}/status").read().splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            name, _, value = line.partition(":\t")
            if name in ("Pid", "PPid", "Tgid", "Ngid", "TracerPid", "NSpid", "NStgid", "NSpgid", "NSsid"):
                found += [int(word) for word in value.split()]
    return foreign(found)


def ipc_ids():
    found = []
    for path, columns in [("shm", (4, 5)), ("msg", (5, 6)), ("sem", ())]:
        rows = [line.split() for line in open(f"/proc/sysvipc/{path}").read().splitlines()[1:]]
        found += [int(row[column]) for row in rows for column in columns]
    return foreign(found)


def signal_sender():
    """A signal from outside has no sender; one of its own has."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    return foreign([signal.sigwaitinfo({signal.SIGUSR1}).si_pid])


gives("ids in /proc/PID/status", status_ids, [], "all of its own namespace")
gives("ids in /proc/sysvipc", ipc_ids, [], "none of a process of the host")
gives("the sender of a signal", signal_sender, [], "known inside")
