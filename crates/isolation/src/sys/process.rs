//! Making processes: clone3 with namespaces, exec of a file descriptor, fds.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::ns::Namespaces;

/// Where a [`fork_into`] came back.
#[derive(Debug)]
pub enum Fork {
    /// In the new process.
    Child,
    /// In the caller, with the child's pid as the caller sees it.
    Parent { pid: u32, pidfd: OwnedFd },
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks into new namespaces.
///
/// # Errors
/// With `EDEADLK` and without forking when the caller has other threads: one of them could hold the allocator's lock,
/// and the child would wait for it for ever.
pub fn fork_into(namespaces: Namespaces) -> io::Result<Fork> {
    if thread_count()? != 1 {
        return Err(io::Error::from_raw_os_error(libc::EDEADLK));
    }
    let mut pidfd: RawFd = -1;
    let mut arguments = CloneArgs {
        flags: namespaces.bits() | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: no CLONE_VM, so the child has a copy of memory and runs on a copy of this stack; the caller has one
    // thread (checked above), so no lock is held by a thread that the child lacks. `pidfd` lives over the call.
    let result = check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArgs>()) })?;
    match result {
        0 => Ok(Fork::Child),
        // SAFETY: in the parent the kernel has stored a new fd that nobody else knows.
        pid => Ok(Fork::Parent { pid: pid as u32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// Forks without new namespaces.
pub fn fork() -> io::Result<Fork> {
    fork_into(Namespaces::NONE)
}

impl Namespaces {
    const NONE: Self = Self::USER.without(Self::USER);
}

fn thread_count() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count))
}

/// Ends the process at once, without running destructors or flushing buffers that belong to the parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Replaces the program by the file that `program` is open on. Returns only with an error.
pub fn exec_fd(program: impl AsFd, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end with a null pointer and point to C strings that the caller's slices keep alive.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_fd().as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Puts a copy of `fd` at exactly `number`, without close-on-exec, and leaves it open for the next program.
pub fn place_fd(fd: impl AsFd, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes two integers; whatever had `number` is closed, which the caller wants.
    check(libc::c_long::from(unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) })).map(drop)
}

/// Moves `fd` to a number of at least `least`, so that low numbers are free to be placed.
pub fn move_fd_above(fd: OwnedFd, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC gives a new fd that only we own.
    unsafe {
        let copy = check(libc::c_long::from(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least)))?;
        Ok(OwnedFd::from_raw_fd(copy as i32))
    }
}

/// Marks every fd from `first` on as close-on-exec.
pub fn close_from_on_exec(first: RawFd) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: close_range takes three integers; with this flag it closes nothing now.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Sets the limit on core dumps to exactly one byte, soft and hard.
///
/// Zero would still start a piped core helper on the host, one does not.
pub fn forbid_core_dumps() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: the structure lives over the call.
    check(libc::c_long::from(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) })).map(drop)
}

/// Sets the host name of the present UTS namespace.
pub fn set_host_name(name: &CStr) -> io::Result<()> {
    // SAFETY: pointer and length are of the same string.
    check(libc::c_long::from(unsafe { libc::sethostname(name.as_ptr(), name.to_bytes().len()) })).map(drop)
}

/// Unblocks all signals and gives each its default meaning again, as a new program expects.
pub fn reset_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset before it is read; SIG_DFL is valid for every signal, and the
    // two that cannot be changed only make `signal` fail, which is ignored.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        check(libc::c_long::from(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())))?;
        for number in 1..=64 {
            libc::signal(number, libc::SIG_DFL);
        }
    }
    Ok(())
}

/// Ignores what a terminal or a manager sends to a whole session, and lets the kernel reap children by itself.
pub fn ignore_signals() -> io::Result<()> {
    for number in [libc::SIGCHLD, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE, libc::SIGTERM] {
        // SAFETY: SIG_IGN is valid for each of these signals and runs no code of ours.
        if unsafe { libc::signal(number, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Starts a process that does nothing but be in new namespaces, until it is killed.
///
/// It shares the caller's memory instead of getting a copy, which would cost more than all else that it does.
pub fn hold(namespaces: Namespaces) -> io::Result<(u32, OwnedFd)> {
    // It must outlive the new process, and nobody knows when that has died. The callers are few and short-lived.
    let stack = Box::leak(Box::new([0_u128; HOLDER_STACK / size_of::<u128>()]));
    let mut pidfd: RawFd = -1;
    let flags = namespaces.bits() as libc::c_int | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the child runs `sleep_for_ever` on a stack of its own that is never freed, aligned by its type and passed by
    // its end; that function touches no memory but the stack, so sharing the rest is harmless. `pidfd` lives over the call.
    let pid = unsafe {
        let end = stack.as_mut_ptr_range().end.cast();
        libc::clone(sleep_for_ever, end, flags, std::ptr::null_mut(), &raw mut pidfd)
    };
    let pid = check(libc::c_long::from(pid))?;
    // SAFETY: the kernel has stored a new fd that nobody else knows.
    Ok((pid as u32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Enough for one system call.
const HOLDER_STACK: usize = 16 << 10;

extern "C" fn sleep_for_ever(_: *mut libc::c_void) -> libc::c_int {
    loop {
        // SAFETY: pause takes nothing and returns only after a signal handler ran.
        unsafe { libc::pause() };
    }
}
