# Cases 9 and 10: system calls that reach the kernel's wider surface.
NEW = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
       "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}
for kind, flag in NEW.items():
    refused(f"unshare a {kind} namespace", lambda: call(272, flag))
    if kind != "time":
        refused(f"clone into a {kind} namespace", lambda: call(56, flag | signal.SIGCHLD, 0, 0, 0, 0))
arguments = (ctypes.c_uint64 * 11)(NEW["user"], 0, 0, 0, signal.SIGCHLD)
refused("clone3 with a user namespace", lambda: call(435, ctypes.byref(arguments), 88), {errno.ENOSYS})
for kind in ["user", "mnt", "pid", "net", "time"]:
    refused(f"setns to its own {kind} namespace", lambda: call(308, os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), 0))

FAMILIES = {"AF_PACKET": (17, 3, 0x300), "AF_VSOCK": (40, 1, 0), "AF_XDP": (44, 3, 0), "AF_ALG": (38, 5, 0),
            "AF_BLUETOOTH": (31, 3, 1), "AF_CAN": (29, 3, 1), "AF_TIPC": (30, 1, 0), "AF_RDS": (21, 5, 0),
            "AF_KEY": (15, 3, 2), "AF_SMC": (43, 1, 0), "AF_QIPCRTR": (42, 2, 0),
            "netfilter netlink": (16, 3, 12), "audit netlink": (16, 3, 9), "crypto netlink": (16, 3, 21),
            "uevent netlink": (16, 3, 15), "xfrm netlink": (16, 3, 6), "generic netlink": (16, 3, 16)}
for name, triple in FAMILIES.items():
    refused(f"socket {name}", lambda: call(41, *triple), {errno.EAFNOSUPPORT, errno.EPERM})
for name, kind, protocol in [("ICMP", 3, 1), ("TCP", 3, 6), ("any protocol", 3, 255)]:
    refused(f"raw socket for {name}", lambda: call(41, 2, kind, protocol))

# Types and protocols for which the kernel would load a module.
MODULES = {"SCTP": (2, 5, 132), "SCTP one to one": (2, 1, 132), "SCTP over IPv6": (10, 5, 132), "DCCP": (2, 6, 0),
           "L2TP": (2, 2, 115), "SMC": (2, 1, 256), "a protocol of the future": (2, 2, 200)}
for name, triple in MODULES.items():
    refused(f"socket {name}", lambda: call(41, *triple), {errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT})
for name, command in [("a bridge", 0x8940), ("a bridge to make", 0x89A0), ("a VLAN", 0x8982)]:
    refused(f"ioctl that loads the module for {name}", lambda: fcntl.ioctl(socket.socket(), command, bytearray(64)))
for name, triple in {"TCP": (2, 1, 6), "UDP": (2, 2, 17), "UDP over IPv6": (10, 2, 17)}.items():
    gives(f"a plain {name} socket", lambda: socket.socket(*triple).close(), None, "works")

# Huge pages of the host's pool, which no memory limit counts.
refused("mmap of huge pages", lambda: call(9, 0, 2 << 20, 3, 0x40022, -1, 0), {errno.ENOMEM})
refused("memfd of huge pages", lambda: call(319, ctypes.c_char_p(b"huge"), 4), {errno.EINVAL})
refused("shared memory of huge pages", lambda: call(29, 0, 2 << 20, 0o5600), {errno.ENOMEM})
gives("sync", lambda: call(162), 0, "pretended")

CALLS = {
    "io_uring_setup": (425, 8, 0), "io_uring_enter": (426, 0), "io_uring_register": (427, 0), "io_setup": (206, 1, 0),
    "bpf": (321, 0, 0, 0), "userfaultfd": (323, 0), "perf_event_open": (298, 0, 0, -1, -1, 0), "keyctl": (250, 0, -3, 1),
    "add_key": (248, 0, 0, 0, 0, -3), "request_key": (249, 0, 0, 0, 0), "fsopen": (430, 0, 0), "fsmount": (432, 0, 0, 0),
    "fsconfig": (431, 0), "fspick": (433, 0, 0, 0), "move_mount": (429, 0, 0, 0, 0, 0), "open_tree": (428, -100, 0, 0),
    "open_tree_attr": (467, -100, 0, 0, 0, 0), "mount_setattr": (442, 0, 0, 0, 0, 0), "mount": (165, 0, 0, 0, 0, 0),
    "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "fanotify_init": (300, 0, 0), "modify_ldt": (154, 0, 0, 0),
    "open_by_handle_at": (304, -100, 0, 0), "init_module": (175, 0, 0, 0), "finit_module": (313, 0, 0, 0),
    "delete_module": (176, 0, 0), "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, 0, 0, 0, 0, 0),
    "iopl": (172, 3), "ioperm": (173, 0, 1, 1), "reboot": (169, 0, 0, 0, 0), "settimeofday": (164, 0, 0),
    "clock_settime": (227, 0, 0), "swapon": (167, 0, 0), "swapoff": (168, 0), "syslog": (103, 3, 0, 0),
    "acct": (163, 0), "quotactl": (179, 0, 0, 0, 0), "quotactl_fd": (443, 0, 0, 0, 0), "lookup_dcookie": (212, 0, 0, 0),
    "vhangup": (153,), "nfsservctl": (180, 0, 0, 0), "sethostname": (170, 0, 0), "statmount": (457, 0, 0, 0, 0),
    "listmount": (458, 0, 0, 0, 0), "a call of the future": (500,), "migrate_pages": (256, 0, 0, 0, 0),
    "move_pages": (279, 0, 0, 0, 0, 0, 0), "uselib": (134, 0), "ustat": (136, 0, 0), "sysfs": (139, 1, 0),
}
for name, words in CALLS.items():
    refused(name, lambda: call(*words[:7]))


def adjust_clock():
    # ADJ_TICK: a change that does nothing, so that a hole would do no harm.
    return call(159, (ctypes.c_uint32 * 64)(0x4000))


refused("adjtimex that sets", adjust_clock)
refused("realtime priority", lambda: call(144, 0, 1, (ctypes.c_int * 1)(1)))
refused("negative nice value", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5), {errno.EPERM, errno.EACCES})
refused("realtime I/O priority", lambda: call(251, 1, 0, 1 << 13))
open("/tmp/attributes", "w").close()
refused("overlay attributes", lambda: os.setxattr("/tmp/attributes", "trusted.overlay.redirect", b"/"))
home = os.path.expanduser("~/attributes")
open(home, "w").close()
refused("immutable files", lambda: fcntl.ioctl(os.open(home, os.O_RDONLY), 0x40086602, struct.pack("l", 0x10)), {errno.EPERM, errno.EOPNOTSUPP})
refused("subvolumes of the layer's file system", lambda: fcntl.ioctl(os.open(os.path.dirname(home), os.O_RDONLY), 0x5000940E, bytearray(4096)), {errno.EPERM, errno.ENOTTY})


def type_into_terminal():
    master, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)
    return fcntl.ioctl(slave, 0x5412, b"x")


refused("TIOCSTI", type_into_terminal)
refused("TIOCSETD", lambda: fcntl.ioctl(os.openpty()[1], 0x5423, struct.pack("i", 1)))
refused("TIOCLINUX", lambda: fcntl.ioctl(os.openpty()[1], 0x541C, b"\2"))
refused("personality READ_IMPLIES_EXEC", lambda: call(135, 0x400000))


def machine_code(code):
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


# mov eax, 20 (getpid for i386); int 0x80; ret
refused("32-bit system calls", lambda: machine_code(b"\xb8\x14\0\0\0\xcd\x80\xc3"))
refused("x32 system calls", lambda: call(0x40000000 | 39))


# Only a limit of one byte keeps a piped core pattern from starting the host's helper: it must stay.
import resource


def change_core_limit(soft, hard):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    except (OSError, ValueError):
        pass
    try:
        resource.prlimit(0, resource.RLIMIT_CORE, (soft, hard))
    except (OSError, ValueError, PermissionError):
        pass
    try:
        call(160, resource.RLIMIT_CORE, (ctypes.c_uint64 * 2)(soft, hard))
    except OSError:
        pass
    return resource.getrlimit(resource.RLIMIT_CORE)


gives("lower the core limit to 0", lambda: change_core_limit(0, 0), (1, 1), "stays 1")
gives("lower the soft core limit", lambda: change_core_limit(0, 1), (1, 1), "stays 1")
gives("raise the core limit", lambda: change_core_limit(1 << 30, 1 << 30), (1, 1), "stays 1")


def crash():
    os.chdir("/tmp")
    child = os.fork()
    if child == 0:
        ctypes.string_at(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status), os.WCOREDUMP(status), [name for name in os.listdir("/tmp") if name.startswith("core")]


gives("crash", crash, (11, False, []), "no core, no helper")
