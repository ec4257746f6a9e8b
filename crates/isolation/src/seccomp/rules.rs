//! The allowed system calls, with a reason for each group, and the errors of the others.
//!
//! Calls that are not listed here are refused: with `EPERM` if the list knows them, with `ENOSYS` if they are newer
//! than the list, so that programs fall back to an older call as they would on an older kernel.

use std::collections::BTreeMap;

use isopod_wire::KernelFeatures;

/// The decision for one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The kernel executes it.
    Allow,
    /// The caller gets this error.
    Refuse(i32),
    /// The decision depends on an argument.
    Check(Check),
}

/// A decision by the lower half of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Refused if any of these bits is set.
    WithoutBits { argument: u8, bits: u32, errno: i32 },
    /// Refused if it is one of these. The kernel uses 32 bits of an ioctl's command, and so does this check.
    NoneOf { argument: u8, values: &'static [u32], errno: i32 },
    /// Refused unless it is one of these.
    OneOf { argument: u8, values: &'static [u32], errno: i32 },
    /// `prlimit64` may not change the limit of this resource, but may read it and change others.
    KeepLimit { resource: u32 },
    /// A socket's family is one of `families`; or one of `internet`, as a stream or datagrams with one of the
    /// protocols; or netlink with protocol 0 (routes).
    Socket { families: &'static [u32], internet: &'static [u32], protocols: &'static [u32] },
}

/// The last call that the list knows. Later ones return `ENOSYS`.
pub(super) const LAST_KNOWN: u32 = 466;

const NAMESPACE_BITS: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;
const CLONE_NEWTIME: u32 = 0x80;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const TIOCSETD: u32 = 0x5423;
const SIOCGIFBR: u32 = 0x8940;
const SIOCSIFBR: u32 = 0x8941;
const SIOCADDDLCI: u32 = 0x8980;
const SIOCDELDLCI: u32 = 0x8981;
const SIOCGIFVLAN: u32 = 0x8982;
const SIOCSIFVLAN: u32 = 0x8983;
const SIOCBRADDBR: u32 = 0x89a0;
const SIOCBRDELBR: u32 = 0x89a1;
const KEYCTL_JOIN_SESSION_KEYRING: u32 = 1;
const CORE: u32 = libc::RLIMIT_CORE;
/// The call reports success, because some programs treat an error as fatal.
const PRETEND: i32 = 0;
const UNIX: u32 = libc::AF_UNIX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
/// The protocols that the kernel supports without loading a module: the default one, ping, TCP, UDP, ping over IPv6,
/// UDP-Lite, MPTCP.
const PROTOCOLS: &[u32] = &[0, 1, 6, 17, 58, 136, 262];

struct Group {
    #[expect(dead_code, reason = "the reason is for the reader")]
    reason: &'static str,
    calls: &'static [libc::c_long],
}

const fn group(reason: &'static str, calls: &'static [libc::c_long]) -> Group {
    Group { reason, calls }
}

#[rustfmt::skip]
const ALLOWED: &[Group] = &[
    group("reading and writing what is open", &[libc::SYS_read, libc::SYS_write, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_sendfile, libc::SYS_splice, libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range, libc::SYS_readahead, libc::SYS_fadvise64]),
    group("opening, closing and copying descriptors", &[libc::SYS_open, libc::SYS_openat, libc::SYS_openat2, libc::SYS_creat, libc::SYS_close, libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup2, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_pipe, libc::SYS_pipe2]),
    group("file metadata", &[libc::SYS_stat, libc::SYS_fstat, libc::SYS_lstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_access, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlink, libc::SYS_readlinkat, libc::SYS_getdents, libc::SYS_getdents64, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat, libc::SYS_utimensat, libc::SYS_umask, 451 /* cachestat */, libc::SYS_name_to_handle_at]),
    group("changing files and directories, checked by owner and mode", &[libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_mkdir, libc::SYS_mkdirat, libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_unlinkat, libc::SYS_link, libc::SYS_linkat, libc::SYS_symlink, libc::SYS_symlinkat, libc::SYS_chmod, libc::SYS_fchmod, libc::SYS_fchmodat, 452 /* fchmodat2 */, libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown, libc::SYS_fchownat, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs /* one file system of the sandbox; its root is a volatile overlay, where this does nothing */, libc::SYS_sync_file_range]),
    group("FIFOs and sockets in the file system; devices are refused by the user namespace", &[libc::SYS_mknod, libc::SYS_mknodat]),
    group("extended attributes, also of package files", &[libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr, 463, 464, 465, 466 /* the *xattrat family */]),
    group("where a process is; chroot is used by installers and held by a capability", &[libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_getcwd, libc::SYS_chroot]),
    group("watching files", &[libc::SYS_inotify_init, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch]),
    group("memory (huge pages: below)", &[libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_msync, libc::SYS_mincore, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall, libc::SYS_memfd_secret, libc::SYS_remap_file_pages, libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect, libc::SYS_membarrier, libc::SYS_process_madvise, libc::SYS_process_mrelease, 453 /* map_shadow_stack */, 462 /* mseal */]),
    group("memory placement, which allocators and numeric libraries ask for", &[libc::SYS_get_mempolicy, libc::SYS_set_mempolicy, libc::SYS_mbind]),
    group("System V and POSIX IPC of the sandbox's own namespace", &[libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt, libc::SYS_semget, libc::SYS_semop, libc::SYS_semctl, libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv, libc::SYS_msgctl, libc::SYS_mq_open, libc::SYS_mq_unlink, libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify, libc::SYS_mq_getsetattr]),
    group("starting and ending processes (clone by its flags, below)", &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid]),
    group("who a process is", &[libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_getpgid, libc::SYS_getpgrp, libc::SYS_getsid, libc::SYS_getcpu, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrusage, libc::SYS_times]),
    group("changing ids inside the sandbox's range; sudo and su need them", &[libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_setpgid, libc::SYS_setsid, libc::SYS_capget, libc::SYS_capset]),
    group("signals and pidfds, inside the pid namespace", &[libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack, libc::SYS_pause, libc::SYS_signalfd, libc::SYS_signalfd4, libc::SYS_restart_syscall, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_pidfd_getfd]),
    group("debuggers, on processes of the same user; the guest is not dumpable", &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kcmp]),
    group("threads", &[libc::SYS_futex, libc::SYS_futex_waitv, 454, 455, 456 /* futex_wake, _wait, _requeue */, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_set_tid_address, libc::SYS_set_thread_area, libc::SYS_get_thread_area, libc::SYS_arch_prctl, libc::SYS_rseq]),
    group("scheduling; raising priority is held by a capability", &[libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam, libc::SYS_sched_setparam, libc::SYS_sched_getscheduler, libc::SYS_sched_setscheduler, libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval, libc::SYS_sched_getattr, libc::SYS_sched_setattr, libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_ioprio_get, libc::SYS_ioprio_set]),
    group("limits of a process (changing them: below)", &[libc::SYS_getrlimit]),
    group("time, without setting it", &[libc::SYS_time, libc::SYS_gettimeofday, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_alarm, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_timer_create, libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime]),
    group("waiting for events", &[libc::SYS_poll, libc::SYS_ppoll, libc::SYS_select, libc::SYS_pselect6, libc::SYS_epoll_create, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd, libc::SYS_eventfd2]),
    group("sockets (which families: below)", &[libc::SYS_connect, libc::SYS_accept, libc::SYS_accept4, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_shutdown, libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_setsockopt, libc::SYS_getsockopt]),
    group("randomness", &[libc::SYS_getrandom]),
    group("a process restricting itself", &[libc::SYS_prctl, libc::SYS_seccomp, libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self, 459, 461 /* lsm_get_self_attr, lsm_list_modules */]),
    group("reading the clock discipline; setting it is held by a capability", &[libc::SYS_adjtimex, libc::SYS_clock_adjtime]),
];

/// Refused with another error than `EPERM`, because programs then fall back to another call.
const REFUSED_AS_MISSING: &[libc::c_long] = &[
    // A filter cannot see the flags of clone3, which are in memory. libc then uses clone.
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Counted for the whole host: one sandbox could take what all others and the host's databases need.
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_submit,
    libc::SYS_io_cancel,
    333, // io_pgetevents
    457, // statmount
    458, // listmount
];

/// Reported as successful, without doing anything.
const PRETENDED: &[libc::c_long] = &[
    // Writes out all file systems of the host and waits for that, so one sandbox could keep all disks busy. Its own
    // files live as long as it does, so it loses nothing.
    libc::SYS_sync,
];

const CHECKED: &[(libc::c_long, Check)] = &[
    // New namespaces add kernel attack surface: user namespaces enabled most escapes of the last years.
    (libc::SYS_clone, Check::WithoutBits { argument: 0, bits: NAMESPACE_BITS, errno: libc::EPERM }),
    (libc::SYS_unshare, Check::WithoutBits { argument: 0, bits: NAMESPACE_BITS | CLONE_NEWTIME, errno: libc::EPERM }),
    (
        libc::SYS_ioctl,
        Check::NoneOf {
            argument: 1,
            values: &[
                // Typing into another user's terminal.
                TIOCSTI,
                TIOCLINUX,
                // Makes the host load a module for the requested line discipline.
                TIOCSETD,
                // Make the host load the modules for bridges, VLANs and frame relay, before any permission check.
                SIOCGIFBR,
                SIOCSIFBR,
                SIOCBRADDBR,
                SIOCBRDELBR,
                SIOCGIFVLAN,
                SIOCSIFVLAN,
                SIOCADDDLCI,
                SIOCDELDLCI,
            ],
            errno: libc::EPERM,
        },
    ),
    // Huge pages come from a pool of the whole host, and no memory limit counts them. The errors are those of a host
    // whose pool is empty, or of a kernel without them.
    (libc::SYS_mmap, Check::WithoutBits { argument: 3, bits: libc::MAP_HUGETLB as u32, errno: libc::ENOMEM }),
    (libc::SYS_shmget, Check::WithoutBits { argument: 2, bits: libc::SHM_HUGETLB as u32, errno: libc::ENOMEM }),
    (libc::SYS_memfd_create, Check::WithoutBits { argument: 1, bits: libc::MFD_HUGETLB, errno: libc::EINVAL }),
    // Only a limit of one byte prevents a crash from starting the host's core dump helper. Zero does not.
    (libc::SYS_setrlimit, Check::NoneOf { argument: 0, values: &[CORE], errno: PRETEND }),
    (libc::SYS_prlimit64, Check::KeepLimit { resource: CORE }),
    // Allows the plain personality, the 32-bit address layout, no randomisation (debuggers), and reading the current
    // one.
    (
        libc::SYS_personality,
        Check::OneOf { argument: 0, values: &[0, 0x8, 0x20000, 0x20008, 0x40000, u32::MAX], errno: libc::EPERM },
    ),
    // vsock is not confined by a network namespace; packet, xdp and netfilter sockets are kernel attack surface. Raw
    // sockets can forge packets, and in the sandbox's own network only a capability would prevent that. For other types
    // and protocols, the kernel loads a module (SCTP, DCCP, L2TP, SMC) for any user.
    (libc::SYS_socket, Check::Socket { families: &[UNIX], internet: &[INET, INET6], protocols: PROTOCOLS }),
    (libc::SYS_socketpair, Check::OneOf { argument: 0, values: &[UNIX], errno: libc::EAFNOSUPPORT }),
];

/// Returns the whole list as one table. A number that is not in it is refused.
pub(super) fn table() -> BTreeMap<u32, Action> {
    let number = |call: libc::c_long| u32::try_from(call).expect("numbers of system calls are small");
    let allowed = ALLOWED.iter().flat_map(|group| group.calls).map(|call| (number(*call), Action::Allow));
    let missing = REFUSED_AS_MISSING.iter().map(|call| (number(*call), Action::Refuse(libc::ENOSYS)));
    let checked = CHECKED.iter().map(|(call, check)| (number(*call), Action::Check(*check)));
    let pretended = PRETENDED.iter().map(|call| (number(*call), Action::Refuse(PRETEND)));
    allowed.chain(missing).chain(checked).chain(pretended).collect()
}

/// Additional calls for a sandbox with `userns`. Its root has no right to any of this in the sandbox itself, but a process
/// that creates a user namespace has all rights in it. The masks of `/proc` are locked in it.
const FOR_USERNS: &[(libc::c_long, Action)] = &[
    (libc::SYS_clone, Action::Allow),
    (libc::SYS_unshare, Action::Check(Check::WithoutBits { argument: 0, bits: CLONE_NEWTIME, errno: libc::EPERM })),
    (libc::SYS_setns, Action::Allow),
    (libc::SYS_mount, Action::Allow),
    (libc::SYS_umount2, Action::Allow),
    (libc::SYS_pivot_root, Action::Allow),
    (libc::SYS_sethostname, Action::Allow),
    (libc::SYS_setdomainname, Action::Allow),
];

/// Additional calls for a sandbox with `fuse`: mounting something new, and unmounting.
const FOR_FUSE: &[(libc::c_long, Action)] = &[
    (libc::SYS_mount, Action::Check(Check::WithoutBits { argument: 3, bits: CHANGES_OF_MOUNTS, errno: libc::EPERM })),
    (libc::SYS_umount2, Action::Allow),
];

/// What makes `mount` change mounts that exist, such as those that are read-only.
const CHANGES_OF_MOUNTS: u32 = (libc::MS_REMOUNT
    | libc::MS_BIND
    | libc::MS_MOVE
    | libc::MS_SHARED
    | libc::MS_PRIVATE
    | libc::MS_SLAVE
    | libc::MS_UNBINDABLE) as u32;

/// As [`table`], for a sandbox with these features.
pub(super) fn table_with(features: KernelFeatures) -> BTreeMap<u32, Action> {
    let number = |call: libc::c_long| u32::try_from(call).expect("numbers of system calls are small");
    let mut table = table();
    if features.fuse {
        table.extend(FOR_FUSE.iter().map(|(call, action)| (number(*call), *action)));
    }
    if features.userns {
        table.extend(FOR_USERNS.iter().map(|(call, action)| (number(*call), *action)));
    }
    table
}

/// Additional calls for zygotes: their children enter a sandbox and start a session keyring there.
const FOR_ZYGOTES: &[(libc::c_long, Action)] = &[
    (libc::SYS_setns, Action::Allow),
    (
        libc::SYS_keyctl,
        Action::Check(Check::OneOf { argument: 0, values: &[KEYCTL_JOIN_SESSION_KEYRING], errno: libc::EPERM }),
    ),
];

/// Calls that reach into another process. A zygote is in the host's pid namespace, and its user owns the user
/// namespaces of its template's sandboxes, in which trusted processes run while a sandbox is created. Its forks inherit
/// this.
const NOT_FOR_ZYGOTES: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
];

/// Like [`table`], for zygotes.
pub(super) fn zygote_table() -> BTreeMap<u32, Action> {
    let number = |call: libc::c_long| u32::try_from(call).expect("numbers of system calls are small");
    let mut table = table();
    table.extend(FOR_ZYGOTES.iter().map(|(call, action)| (number(*call), *action)));
    table.extend(NOT_FOR_ZYGOTES.iter().map(|call| (number(*call), Action::Refuse(libc::EPERM))));
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_call_stands_in_two_groups() {
        let listed = ALLOWED.iter().map(|group| group.calls.len()).sum::<usize>();
        assert_eq!(table().len(), listed + REFUSED_AS_MISSING.len() + CHECKED.len() + PRETENDED.len());
    }

    #[test]
    fn a_zygote_enters_sandboxes_and_reaches_into_no_other_process() {
        let zygote = zygote_table();
        assert_eq!(zygote.get(&(libc::SYS_setns as u32)), Some(&Action::Allow));
        for call in NOT_FOR_ZYGOTES {
            let call = *call as u32;
            assert_eq!(table().get(&call), Some(&Action::Allow), "sandboxes need {call}");
            assert_eq!(zygote.get(&call), Some(&Action::Refuse(libc::EPERM)), "system call {call} is allowed");
        }
        let others = |table: BTreeMap<u32, Action>| {
            let differs = FOR_ZYGOTES.iter().map(|(call, _)| call).chain(NOT_FOR_ZYGOTES).map(|call| *call as u32);
            differs.fold(table, |mut table, call| {
                table.remove(&call);
                table
            })
        };
        assert_eq!(others(zygote), others(table()));
    }

    #[test]
    fn features_add_their_calls_and_no_others() {
        let with = |userns, fuse| table_with(KernelFeatures { userns, fuse });
        let added = |table: BTreeMap<u32, Action>| -> BTreeSet<u32> {
            let plain = self::table();
            table.into_iter().filter(|(call, action)| plain.get(call) != Some(action)).map(|(call, _)| call).collect()
        };
        let calls = |calls: &[libc::c_long]| calls.iter().map(|call| *call as u32).collect::<BTreeSet<u32>>();
        let userns: Vec<libc::c_long> = FOR_USERNS.iter().map(|(call, _)| *call).collect();
        assert_eq!(added(with(false, false)), BTreeSet::new());
        assert_eq!(added(with(false, true)), calls(&[libc::SYS_mount, libc::SYS_umount2]));
        assert_eq!(added(with(true, false)), calls(&userns));
        assert_eq!(with(true, true), with(true, false));
        assert_ne!(with(false, true).get(&(libc::SYS_mount as u32)), Some(&Action::Allow), "no remounts");
    }

    #[test]
    fn dangerous_calls_are_not_in_the_list() {
        let table = table();
        for call in [
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_open_by_handle_at,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_kexec_load,
            libc::SYS_kexec_file_load,
            libc::SYS_reboot,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_fsopen,
            libc::SYS_fsmount,
            libc::SYS_fsconfig,
            libc::SYS_fspick,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_mount_setattr,
            libc::SYS_iopl,
            libc::SYS_ioperm,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_syslog,
            libc::SYS_acct,
            libc::SYS_quotactl,
            libc::SYS_modify_ldt,
            libc::SYS_fanotify_init,
        ] {
            assert_eq!(table.get(&(call as u32)), None, "system call {call} is allowed");
        }
    }
}
