# Case 5: pid 1 is the guest.
TRACE = CLOSED | {errno.EIO}
for name in ["mem", "exe", "maps", "environ", "auxv", "stack", "syscall", "pagemap", "io", "personality", "fd/3", "fd/5"]:
    refused(f"read /proc/1/{name}", lambda: read_from(f"/proc/1/{name}"), TRACE)
for name in ["mem", "exe", "uid_map", "attr/current", "fd/3", "fd/5"]:
    refused(f"write /proc/1/{name}", lambda: write_to(f"/proc/1/{name}"), TRACE | {errno.ETXTBSY, errno.EINVAL})
for name in ["root", "cwd", "exe", "fd/3", "ns/mnt", "ns/user"]:
    refused(f"follow /proc/1/{name}", lambda: os.readlink(f"/proc/1/{name}"), TRACE)
refused("list /proc/1/map_files", lambda: os.listdir("/proc/1/map_files"), TRACE)
for name, request in [("ATTACH", 16), ("SEIZE", 0x4206)]:
    refused(f"ptrace {name}", lambda: call(101, request, 1, 0, 0))
buffer = ctypes.create_string_buffer(64)
local, remote = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 64), (ctypes.c_uint64 * 2)(0x400000, 64)
refused("process_vm_readv", lambda: call(310, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
refused("process_vm_writev", lambda: call(311, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
refused("pidfd_getfd", lambda: call(438, call(434, 1, 0), 3, 0))
refused("kcmp", lambda: call(312, 1, os.getpid(), 1, 0, 0))
refused("process_madvise", lambda: call(440, call(434, 1, 0), ctypes.byref(remote), 1, 21, 0), FILTERED | {errno.EACCES})


def signal_all():
    import resource
    for number in list(range(1, 32)):
        try:
            os.kill(1, number)
        except OSError:
            pass
    return os.path.exists("/proc/1")


gives("every signal to the guest", signal_all, True, "it lives")


def own_program():
    """What CVE-2019-5736 did: have the guest start /proc/self/exe, then write to it."""
    os.open("/proc/self/exe", os.O_WRONLY)


refused("write to its own running program", own_program, CLOSED | {errno.ETXTBSY})
