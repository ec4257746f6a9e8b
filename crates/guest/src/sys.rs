//! The guest's only `unsafe` code: taking over inherited descriptors, starting processes, changing file ids, and asking
//! a socket what its other end has read.
//!
//! Promises: [`spawn`] returns either the pid of a child that has already exec'd or the step that failed, and leaves no
//! process behind on failure. The child shares the parent's memory until it execs (as posix_spawn does), so a start costs the
//! same however large the guest is, and no page of it becomes copy-on-write. Nothing here allocates in the child.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Everything a child needs, prepared before it exists.
#[derive(Debug)]
pub(crate) struct SpawnPlan<'a> {
    /// Files to try in turn, as `execvp` does along `PATH`.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// One more descriptor for the child, as number 3.
    pub(crate) extra: Option<BorrowedFd<'a>>,
    /// Whether standard input is a terminal that becomes the controlling one of the new session.
    pub(crate) terminal: bool,
}

/// The step at which a start failed, and why.
#[derive(Debug)]
pub(crate) enum SpawnError {
    /// The child could not be created.
    Fork(io::Error),
    /// The session, terminal or standard streams could not be set up.
    Session(io::Error),
    /// Ids could not be changed.
    Identity(io::Error),
    /// The working directory could not be entered (with the rights of the user).
    Chdir(io::Error),
    /// No candidate could be executed.
    Exec(io::Error),
}

const STEP_SESSION: i32 = 1;
const STEP_IDENTITY: i32 = 2;
const STEP_CHDIR: i32 = 3;
const STEP_EXEC: i32 = 4;

/// Enough for the child's few calls; measured use is below 4 KiB.
const CHILD_STACK: usize = 64 * 1024;

struct Shared {
    programs: *const *const c_char,
    argv: *const *const c_char,
    /// `/bin/sh`, a slot for the script, then the arguments: for files without `#!`.
    shell_argv: *mut *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    groups: *const u32,
    group_count: usize,
    uid: u32,
    gid: u32,
    stdio: [RawFd; 3],
    /// -1 when there is none.
    extra: RawFd,
    terminal: bool,
    /// Where the child failed; 0 while it has not.
    step: AtomicI32,
    errno: AtomicI32,
}

/// Starts a process in a session of its own. Blocks until it has exec'd or failed.
pub(crate) fn spawn(plan: &SpawnPlan<'_>) -> Result<Pid, SpawnError> {
    if plan.stdio.iter().chain(&plan.extra).any(|fd| fd.as_raw_fd() < 3) {
        return Err(SpawnError::Session(io::Error::from_raw_os_error(libc::EBADF)));
    }
    let programs = pointers(&plan.programs);
    let argv = pointers(&plan.argv);
    let env = pointers(&plan.env);
    let mut shell_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
    shell_argv.extend(argv.iter().skip(1));
    if argv.len() == 1 {
        shell_argv.push(ptr::null());
    }
    let mut shared = Shared {
        programs: programs.as_ptr(),
        argv: argv.as_ptr(),
        shell_argv: shell_argv.as_mut_ptr(),
        env: env.as_ptr(),
        cwd: plan.cwd.as_ptr(),
        groups: plan.groups.as_ptr(),
        group_count: plan.groups.len(),
        uid: plan.uid,
        gid: plan.gid,
        stdio: [plan.stdio[0].as_raw_fd(), plan.stdio[1].as_raw_fd(), plan.stdio[2].as_raw_fd()],
        extra: plan.extra.map_or(-1, |fd| fd.as_raw_fd()),
        terminal: plan.terminal,
        step: AtomicI32::new(0),
        errno: AtomicI32::new(0),
    };
    let pid = clone_child(&mut shared).map_err(SpawnError::Fork)?;
    let cause = io::Error::from_raw_os_error(shared.errno.load(Ordering::Relaxed));
    let failed = match shared.step.load(Ordering::Relaxed) {
        0 => return Ok(pid),
        STEP_SESSION => SpawnError::Session(cause),
        STEP_IDENTITY => SpawnError::Identity(cause),
        STEP_CHDIR => SpawnError::Chdir(cause),
        _ => SpawnError::Exec(cause),
    };
    // The failed child has exited. Reap it before other code sees the pid.
    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    Err(failed)
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn clone_child(shared: &mut Shared) -> io::Result<Pid> {
    let mut stack: Vec<MaybeUninit<u8>> = Vec::with_capacity(CHILD_STACK);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `stack` and `shared` live until after clone returns, and CLONE_VFORK makes it return only when the child
    // has exec'd or exited, so the child never outlives what it borrows. All signals are blocked around the call, so
    // none of the parent's handlers can run on the child's side of the shared memory. The top of the stack is one past
    // the end of the allocation, which clone accepts and aligns downwards.
    let pid = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let top = stack.as_mut_ptr().add(CHILD_STACK).cast::<c_void>();
        let pid = libc::clone(child, top, flags, ptr::from_mut(shared).cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if pid < 0 {
            return Err(error);
        }
        pid
    };
    Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

extern "C" fn child(shared: *mut c_void) -> c_int {
    // SAFETY: `clone_child` passes a pointer to its `Shared`, which outlives this function (see there); the parent is
    // suspended, so no other code reads or writes it.
    let shared = unsafe { &mut *shared.cast::<Shared>() };
    raise_oom_score();
    let step = if !enter_session(shared) {
        STEP_SESSION
    } else if !take_identity(shared) {
        STEP_IDENTITY
    // SAFETY: `cwd` points to a C string owned by the plan. Entered only now, with the user's own rights, so that it
    // cannot name what only the guest may reach.
    } else if unsafe { libc::chdir(shared.cwd) } != 0 {
        STEP_CHDIR
    } else {
        reset_child_signals();
        execute(shared);
        STEP_EXEC
    };
    shared.errno.store(errno(), Ordering::Relaxed);
    shared.step.store(step, Ordering::Relaxed);
    // SAFETY: leaves without running any destructor or exit handler of the shared address space.
    unsafe { libc::_exit(127) }
}

/// Makes the kernel kill this process before the guest when the sandbox runs out of memory. Not worth an error.
///
/// The child does this while it still has the guest's rights. The kernel keeps a separate score for a vfork child, although
/// it shares its parent's memory.
fn raise_oom_score() {
    const ADJUSTMENT: &[u8] = b"500";
    // SAFETY: system calls on a constant path, plain numbers and buffers of this frame; nothing is allocated. The file
    // system is asked for its kind, so that nothing but procfs is ever written to.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        if fd < 0 {
            return;
        }
        let mut kind = MaybeUninit::<libc::statfs>::zeroed();
        if libc::fstatfs(fd, kind.as_mut_ptr()) == 0
            && kind.assume_init_ref().f_type as u64 == libc::PROC_SUPER_MAGIC as u64
        {
            libc::write(fd, ADJUSTMENT.as_ptr().cast(), ADJUSTMENT.len());
        }
        libc::close(fd);
    }
}

fn enter_session(shared: &Shared) -> bool {
    // SAFETY: system calls on plain numbers. The sources of dup2 are above 2 (checked by `spawn`), so no earlier dup2
    // overwrites a later source; the number 3 is overwritten last of all.
    unsafe {
        if libc::setsid() < 0 {
            return false;
        }
        for (target, source) in (0..).zip(shared.stdio) {
            if libc::dup2(source, target) < 0 {
                return false;
            }
        }
        let mut first_closed = 3u32;
        if shared.extra >= 0 {
            // dup2 onto itself changes nothing, so clear the flag explicitly.
            if libc::dup2(shared.extra, 3) < 0 || libc::fcntl(3, libc::F_SETFD, 0) < 0 {
                return false;
            }
            first_closed = 4;
        }
        // Everything of the guest is close-on-exec; this also covers what a library might have forgotten. The child's
        // descriptor table is its own (no CLONE_FILES).
        libc::syscall(libc::SYS_close_range, first_closed, u32::MAX, 0u32);
        !shared.terminal || libc::ioctl(0, libc::TIOCSCTTY, 0) == 0
    }
}

fn take_identity(shared: &Shared) -> bool {
    // SAFETY: `groups` points to `group_count` ids owned by the plan. Raw calls are needed: the C library's versions
    // would try to change every thread of the process whose memory this child shares.
    unsafe {
        libc::syscall(libc::SYS_setgroups, shared.group_count, shared.groups) == 0
            && libc::syscall(libc::SYS_setresgid, shared.gid, shared.gid, shared.gid) == 0
            && libc::syscall(libc::SYS_setresuid, shared.uid, shared.uid, shared.uid) == 0
    }
}

fn reset_child_signals() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: without CLONE_SIGHAND the child's handler table is its own copy. exec resets caught signals; SIGPIPE,
    // which the Rust runtime ignores, has to be restored by hand.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Tries every candidate. Returns only on failure, with the most useful reason in errno.
fn execute(shared: &Shared) {
    let mut denied = false;
    // SAFETY: all four arrays are null-terminated and owned by `spawn`'s frame; `shell_argv[1]` is its free slot.
    unsafe {
        let mut program = shared.programs;
        while !(*program).is_null() {
            libc::execve(*program, shared.argv, shared.env);
            match errno() {
                libc::ENOEXEC => {
                    *shared.shell_argv.add(1) = *program;
                    libc::execve(c"/bin/sh".as_ptr(), shared.shell_argv, shared.env);
                    set_errno(libc::ENOEXEC);
                    return;
                }
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR => {}
                _ => return,
            }
            program = program.add(1);
        }
    }
    set_errno(if denied { libc::EACCES } else { libc::ENOENT });
}

fn errno() -> c_int {
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// Takes over a descriptor that the guest inherited, and makes it close-on-exec.
pub(crate) fn take_fd(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: called while arguments are read, before anything else was opened, once for each number; F_SETFD fails
    // when the descriptor is not open.
    unsafe {
        if libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(number))
    }
}

/// Closes every descriptor above the standard streams that is not in `keep`.
pub(crate) fn close_others(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3u32;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if first < fd {
            // SAFETY: runs before the runtime exists; the guest itself owns nothing in the closed ranges yet.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0u32) };
        }
        first = fd.saturating_add(1);
    }
}

/// Resets inherited blocked and ignored signals. SIGPIPE stays ignored in the guest itself.
pub(crate) fn reset_signals() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: runs before any other thread or handler exists; resetting dispositions to the default needs no state.
    unsafe {
        for signal in (1..32).filter(|s| ![libc::SIGPIPE, libc::SIGKILL, libc::SIGSTOP].contains(s)) {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Gives this thread the file ids of a user until it is dropped. It keeps its capabilities, which the kernel would otherwise
/// reduce as soon as the ids are not root's.
#[derive(Debug)]
pub(crate) struct FileIds(());

impl FileIds {
    /// Has no effect if the guest is not root.
    pub(crate) fn take(uid: u32, gid: u32) -> Self {
        let capabilities = rustix::thread::capabilities(None);
        set_file_ids(uid, gid);
        if let Ok(capabilities) = capabilities {
            // If this fails, the work is denied and repeated as root.
            let _ = rustix::thread::set_capabilities(None, capabilities);
        }
        Self(())
    }
}

impl Drop for FileIds {
    fn drop(&mut self) {
        set_file_ids(0, 0);
    }
}

/// Uses system calls directly, because the C library would change all threads.
fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: the calls take plain numbers and change the credentials of this thread alone. The kernel may make the process
    // dumpable at each such change, if the host's `suid_dumpable` says so; the last call undoes that.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
    }
}

/// Lets the runtime watch a descriptor.
pub(crate) fn watch_fd(fd: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the descriptor must stay the same and open for as long as it is registered. An `Arc<OwnedFd>` names one
    // descriptor for its whole life, and the `AsyncFd` holds a share of it until it has been deregistered.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

/// How many bytes that were sent on a Unix socket its other end has not read.
pub(crate) fn unread_by_peer(socket: impl AsFd) -> io::Result<usize> {
    let mut unread: c_int = 0;
    // SAFETY: SIOCOUTQ, which has the number of TIOCOUTQ, writes one int, and `unread` is one.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(unread).unwrap_or(0))
}

/// Converts a client's text to a C string. `None` if it contains a NUL.
pub(crate) fn c_string(text: &str) -> Option<CString> {
    CString::new(text).ok()
}

/// The text of a C string for messages.
#[cfg(test)]
pub(crate) fn text(string: &std::ffi::CStr) -> String {
    string.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn plan<'a>(program: &str, args: &[&str], cwd: &str, null: BorrowedFd<'a>, out: BorrowedFd<'a>) -> SpawnPlan<'a> {
        SpawnPlan {
            programs: vec![c_string(program).unwrap()],
            argv: [program].iter().chain(args).map(|a| c_string(a).unwrap()).collect(),
            env: vec![c_string("A=1").unwrap()],
            cwd: c_string(cwd).unwrap(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            groups: vec![],
            stdio: [null, out, out],
            extra: None,
            terminal: false,
        }
    }

    fn run(program: &str, args: &[&str], cwd: &str) -> Result<String, SpawnError> {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let pid = spawn(&plan(program, args, cwd, null.as_fd(), write.as_fd()))?;
        drop(write);
        let mut out = String::new();
        File::from(read).read_to_string(&mut out).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        Ok(out)
    }

    #[test]
    fn a_child_gets_its_directory_and_environment() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        assert_eq!(run("/bin/sh", &["-c", "pwd; echo $A; ls /proc/self/fd | wc -l"], "/usr").unwrap(), "/usr\n1\n4\n");
    }

    #[test]
    fn a_child_can_get_one_more_descriptor_whatever_its_number_was() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        for _ in 0..3 {
            // Each round has one more open descriptor, so that 3 itself may be the source too.
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
            let mut plan = plan(
                "/bin/sh",
                &["-c", "echo extra >&3; ls /proc/self/fd | wc -l >&3"],
                "/",
                null.as_fd(),
                null.as_fd(),
            );
            plan.extra = Some(write.as_fd());
            let pid = spawn(&plan).unwrap();
            drop(write);
            let mut out = String::new();
            File::from(read).read_to_string(&mut out).unwrap();
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
            assert_eq!(out, "extra\n5\n");
        }
    }

    #[test]
    fn what_the_other_end_has_read_is_known() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(unread_by_peer(&ours).unwrap(), 0);
        io::Write::write_all(&mut &ours, b"hello").unwrap();
        assert!(unread_by_peer(&ours).unwrap() > 0);
        theirs.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(unread_by_peer(&ours).unwrap(), 0);
    }

    #[test]
    fn failures_name_the_step() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        assert!(matches!(run("/bin/true", &[], "/no/such"), Err(SpawnError::Chdir(e)) if e.raw_os_error() == Some(2)));
        assert!(matches!(run("/no/such", &[], "/"), Err(SpawnError::Exec(e)) if e.raw_os_error() == Some(2)));
    }

    #[test]
    fn a_script_without_a_shebang_runs_in_the_shell() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "echo script $1\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(run(script.to_str().unwrap(), &["x"], "/").unwrap(), "script x\n");
    }
}
