# Cases 8, 10 and 11: files and devices that reach the host.
WRITES = ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/sysrq",
          "/proc/sys/kernel/hotplug", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/drop_caches",
          "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/hostname",
          "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/shmmax", "/proc/sys/fs/file-max",
          "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/all/route_localnet",
          "/proc/sys/net/ipv6/conf/all/disable_ipv6", "/proc/sys/user/max_user_namespaces",
          "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state",
          "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/unified/cgroup.procs",
          "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups", "/proc/1/uid_map", "/proc/acpi/wakeup",
          "/proc/mtrr", "/proc/bus/pci/devices", "/proc/irq/default_smp_affinity", "/proc/timer_list"]
for path in WRITES:
    refused(f"write {path}", lambda: write_to(path), CLOSED | {errno.EINVAL} if path.endswith("_map") else CLOSED)
for path in ["/proc/self/timens_offsets", "/proc/1/timens_offsets"]:
    refused(f"write {path}", lambda: write_to(path, b"boottime 5 0\n"), CLOSED)
READS = ["/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/dev/mem", "/dev/port", "/proc/keys", "/proc/key-users", "/proc/config.gz",
         "/proc/kallsyms", "/proc/cmdline", "/proc/partitions", "/proc/diskstats", "/proc/locks", "/proc/iomem",
         "/proc/ioports", "/proc/interrupts", "/proc/timer_list", "/proc/modules", "/proc/slabinfo", "/proc/vmallocinfo",
         "/proc/sched_debug", "/proc/kpagecount", "/proc/pressure/cpu", "/proc/fs/ext4", "/proc/bus/input/devices",
         "/sys/kernel/debug/x", "/sys/kernel/tracing/trace", "/sys/class/dmi/id/product_uuid", "/sys/firmware/dmi",
         "/sys/block/loop0/size", "/proc/1/environ", "/proc/1/maps", "/proc/1/stack", "/proc/1/syscall", "/etc/shadow.host"]
for path in READS:
    refused(f"read {path}", lambda: read_from(path), CLOSED | {errno.EISDIR})

DEVICES = {"a block device": (stat.S_IFBLK, 8, 0), "loop0": (stat.S_IFBLK, 7, 0), "kvm": (stat.S_IFCHR, 10, 232),
           "fuse": (stat.S_IFCHR, 10, 229), "mem": (stat.S_IFCHR, 1, 1), "tun": (stat.S_IFCHR, 10, 200)}
for name, (kind, major, minor) in DEVICES.items():
    for place in ["/tmp", "/home/user", "/dev/shm", "/dev"]:
        path = f"{place}/device-{os.getpid()}"
        refused(f"mknod {name} in {place}", lambda: os.mknod(path, kind | 0o666, os.makedev(major, minor)), CLOSED)
expected = ["fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
gives("devices in /dev", lambda: sorted(os.listdir("/dev")), expected, "only harmless ones")
for name in ["kvm", "fuse", "loop0", "loop-control", "sda", "vda", "mem", "net/tun", "userfaultfd", "vsock", "vhost-net"]:
    refused(f"open /dev/{name}", lambda: os.open(f"/dev/{name}", os.O_RDWR), CLOSED)
refused("replace /dev/null", lambda: os.rename("/dev/null", "/dev/zero"), CLOSED)
refused("chmod /dev/null", lambda: os.chmod("/dev/null", 0o600), CLOSED)


def mount(kind, source=b"none", target=b"/tmp", flags=0, data=None):
    return lambda: call(165, ctypes.c_char_p(source), ctypes.c_char_p(target), ctypes.c_char_p(kind), flags, ctypes.c_char_p(data))


for kind in [b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"fuse", b"ext4", b"overlay", b"devpts", b"mqueue", b"binfmt_misc"]:
    refused(f"mount {kind.decode()}", mount(kind))
refused("bind-mount /", mount(b"", b"/", b"/tmp", 4096))
refused("remount /proc/sys writable", mount(b"", b"", b"/proc/sys", 32 | 4096))
refused("unmount a mask of /proc", lambda: call(166, ctypes.c_char_p(b"/proc/kcore"), 2))
gives("own cgroup", lambda: {line.split(":", 2)[2] for line in open("/proc/self/cgroup").read().split()}, {"/"}, "shows as the root")
def group_mounts():
    return [line.split() for line in open("/proc/self/mountinfo") if " - cgroup" in line]


def foreign_groups():
    return [mount for mount in group_mounts() if mount[3] != "/" or "ro" not in mount[5].split(",")]


def groups():
    return [found for mount in group_mounts() for found in os.walk(mount[4])]


def writable_groups():
    found = []
    for directory, _, files in groups():
        for attempt in [lambda: os.mkdir(f"{directory}/own"), lambda: os.chmod(directory, 0o777)]:
            try:
                attempt()
                found.append(directory)
            except OSError:
                pass
        for name in files:
            try:
                os.close(os.open(f"{directory}/{name}", os.O_WRONLY))
                found.append(f"{directory}/{name}")
            except OSError:
                pass
    return found


gives("cgroup file systems", foreign_groups, [], "its own groups, read-only")
gives("groups below its own", lambda: [name for _, names, _ in groups() for name in names], [], "none")
gives("change its own groups", writable_groups, [], "nothing can be written")
gives("file systems of its groups", lambda: len(groups()) > 0, True, "there")
for place in {found[4] for found in group_mounts()}:
    refused("remount its groups writable", mount(b"", b"", place.encode(), 32 | 4096))
