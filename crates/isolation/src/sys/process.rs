//! Creates processes: clone3 with namespaces, exec of a file descriptor, descriptors.

use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::cred::{set_group_ids, set_user_ids};
use super::ns::{Namespaces, unshare};

/// Where a [`fork_into`] returned.
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
/// With `EDEADLK`, without forking, if the caller has other threads: one of them could hold the allocator's lock, and
/// the child would wait for it forever.
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

/// Forks a process that has a second thread, which the test harness always starts. That thread waits and holds no lock.
#[cfg(test)]
pub fn fork_beside_harness() -> io::Result<Fork> {
    // SAFETY: libc's own fork takes the allocator's locks, so the child can use memory. The other thread waits for this one.
    match check(libc::c_long::from(unsafe { libc::fork() }))? {
        0 => Ok(Fork::Child),
        pid => {
            let number = rustix::process::Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH)?;
            let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
            Ok(Fork::Parent { pid: pid as u32, pidfd })
        }
    }
}

fn thread_count() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count))
}

/// Ends the process at once, without running destructors or flushing buffers that belong to the parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Replaces the program with the file that `program` is open on. Returns only on an error.
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

/// Duplicates `fd` to exactly `number`, without close-on-exec, for the next program.
pub fn place_fd(fd: impl AsFd, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes two integers; whatever had `number` is closed, which the caller wants.
    check(libc::c_long::from(unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) })).map(drop)
}

/// Moves `fd` to a number of at least `least`, so that low numbers are free.
pub fn move_fd_above(fd: OwnedFd, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC gives a new fd that only we own.
    unsafe {
        let copy = check(libc::c_long::from(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least)))?;
        Ok(OwnedFd::from_raw_fd(copy as i32))
    }
}

/// Marks every descriptor from `first` on as close-on-exec.
pub fn close_from_on_exec(first: RawFd) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: close_range takes three integers; with this flag it closes nothing now.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Closes every descriptor except these.
///
/// Only for a process that was just forked: its memory still contains values of its parent that own other descriptors.
/// It neither uses nor drops them, because it never returns into the functions that hold them.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<libc::c_uint> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut next = 0;
    for number in numbers {
        if next < number {
            close_range(next, number - 1)?;
        }
        next = number + 1;
    }
    close_range(next, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: close_range takes three integers. Who owns what is closed: see `close_all_but`, or the descriptors are
    // the process's own copies, which no value of it owns.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Sets the limit on core dumps to exactly one byte, soft and hard.
///
/// With zero, the kernel would still start a piped core helper on the host.
pub fn forbid_core_dumps() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: the structure lives over the call.
    check(libc::c_long::from(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) })).map(drop)
}

/// Sets the host name of the current UTS namespace.
pub fn set_host_name(name: &CStr) -> io::Result<()> {
    // SAFETY: pointer and length are of the same string.
    check(libc::c_long::from(unsafe { libc::sethostname(name.as_ptr(), name.to_bytes().len()) })).map(drop)
}

/// Unblocks all signals and resets their handlers, as a new program expects.
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

/// Ignores what a terminal or a manager sends to a whole session, and lets the kernel reap children.
pub fn ignore_signals() -> io::Result<()> {
    for number in [libc::SIGCHLD, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE, libc::SIGTERM] {
        // SAFETY: SIG_IGN is valid for each of these signals and runs no code of ours.
        if unsafe { libc::signal(number, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Starts a process that only holds new namespaces, until it is killed.
///
/// It shares the caller's memory, because a copy would cost more than everything else.
pub fn hold(namespaces: Namespaces) -> io::Result<(u32, OwnedFd)> {
    start_holder(namespaces, sleep_forever, std::ptr::null_mut())
}

/// Like [`hold`], with a process that first becomes the root of the caller's user namespace.
pub fn hold_as_root(namespaces: Namespaces) -> io::Result<(u32, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // It must outlive the new process, like its stack.
    let order = Box::leak(Box::new(RootOrder { namespaces, report: writer.as_raw_fd() }));
    let held = start_holder(Namespaces::NONE, become_root_and_sleep, (&raw mut *order).cast())?;
    // The holder's own copy stays open until it has reported.
    drop(writer);
    // Read to the end: by then, the holder has closed our descriptors.
    let mut report = Vec::new();
    std::fs::File::from(reader).read_to_end(&mut report)?;
    match <[u8; size_of::<i32>()]>::try_from(report).map(i32::from_ne_bytes) {
        Ok(0) => Ok(held),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
        Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What a holder does before it sleeps.
struct RootOrder {
    namespaces: Namespaces,
    /// Where it writes the error, or zero.
    report: RawFd,
}

type HolderMain = extern "C" fn(*mut libc::c_void) -> libc::c_int;

/// `main` may only make system calls, because it shares the caller's memory, including its locks.
fn start_holder(namespaces: Namespaces, main: HolderMain, argument: *mut libc::c_void) -> io::Result<(u32, OwnedFd)> {
    // It must outlive the new process, whose end is unknown. The callers are few and short-lived.
    let stack = Box::leak(Box::new([0_u128; HOLDER_STACK / size_of::<u128>()]));
    let mut pidfd: RawFd = -1;
    let flags = namespaces.bits() as libc::c_int | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the child runs `main` on a stack of its own that is never freed, aligned by its type and passed by its end;
    // both functions that are passed touch no memory but the stack and their own argument, which is leaked too, so sharing
    // the rest is harmless. `pidfd` lives over the call.
    let pid = unsafe {
        let end = stack.as_mut_ptr_range().end.cast();
        libc::clone(main, end, flags, argument, &raw mut pidfd)
    };
    let pid = check(libc::c_long::from(pid))?;
    // SAFETY: the kernel has stored a new fd that nobody else knows.
    Ok((pid as u32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Enough for a few system calls.
const HOLDER_STACK: usize = 16 << 10;

/// Closes all descriptors first: the holder has copies of the caller's, and the owner of its namespace may look for
/// them.
extern "C" fn sleep_forever(_: *mut libc::c_void) -> libc::c_int {
    // Cannot fail for this range.
    let _ = close_range(0, libc::c_uint::MAX);
    loop {
        // SAFETY: pause takes nothing and returns only after a signal handler ran.
        unsafe { libc::pause() };
    }
}

extern "C" fn become_root_and_sleep(order: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `hold_as_root` passes a leaked `RootOrder` that nobody changes.
    let order = unsafe { &*order.cast::<RootOrder>() };
    let errno = match become_root_in(order.namespaces) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    // SAFETY: the pointer is to an integer on this stack, of the size that is passed.
    unsafe { libc::write(order.report, (&raw const errno).cast(), size_of::<i32>()) };
    sleep_forever(std::ptr::null_mut())
}

/// Makes only system calls, as a holder's `main` must.
fn become_root_in(namespaces: Namespaces) -> io::Result<()> {
    set_group_ids(Some(0), Some(0), Some(0))?;
    set_user_ids(Some(0), Some(0), Some(0))?;
    unshare(namespaces)
}
