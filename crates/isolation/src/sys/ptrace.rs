//! Reading the system call filters of another thread, which needs a tracer.

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::time::{Duration, Instant};

use super::check;
use super::seccomp::Instruction;

/// The kernel's requests, which libc lists with a type that depends on the C library.
#[derive(Clone, Copy)]
#[repr(i64)]
enum Request {
    Detach = 17,
    Seize = 0x4206,
    Interrupt = 0x4207,
    GetFilter = 0x420c,
}

/// How long a thread may take to stand still.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const STOP_PAUSE: Duration = Duration::from_micros(20);

/// A thread that stands still for its tracer, which is the calling thread. It goes on as it was when this is dropped.
struct Traced {
    tid: libc::pid_t,
    /// Only the tracer may ask.
    on_this_thread: PhantomData<*const ()>,
}

/// Returns the filters of a thread, the first one that it got first.
///
/// Needs the rights of the host's root, and no filter on the caller.
///
/// # Errors If the thread doesn't stand still in time, it stays traced until the calling thread ends.
pub fn filters_of(tid: u32) -> io::Result<Vec<Vec<Instruction>>> {
    let traced = Traced::stop(tid)?;
    let mut filters = Vec::new();
    loop {
        match traced.filter(filters.len()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
            // It has none.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && filters.is_empty() => return Ok(filters),
            filter => filters.push(filter?),
        }
    }
}

impl Traced {
    fn stop(tid: u32) -> io::Result<Self> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        ask(Request::Seize, tid, 0, ptr::null_mut())?;
        // From here on, it is let go.
        let traced = Self { tid, on_this_thread: PhantomData };
        ask(Request::Interrupt, tid, 0, ptr::null_mut())?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !traced.stands_still()? {
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(STOP_PAUSE);
        }
        Ok(traced)
    }

    fn stands_still(&self) -> io::Result<bool> {
        let mut status = 0;
        // SAFETY: the status lives over the call.
        let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match check(libc::c_long::from(waited))? {
            0 => Ok(false),
            _ if libc::WIFSTOPPED(status) => Ok(true),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    fn filter(&self, index: usize) -> io::Result<Vec<Instruction>> {
        let length = ask(Request::GetFilter, self.tid, index, ptr::null_mut())?;
        let none = Instruction { code: 0, jump_true: 0, jump_false: 0, operand: 0 };
        let mut filter = vec![none; usize::try_from(length).unwrap_or(0)];
        // A filter cannot change, so this is as long as the kernel just said.
        ask(Request::GetFilter, self.tid, index, filter.as_mut_ptr().cast())?;
        Ok(filter)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = ask(Request::Detach, self.tid, 0, ptr::null_mut());
    }
}

fn ask(request: Request, tid: libc::pid_t, address: usize, data: *mut libc::c_void) -> io::Result<libc::c_long> {
    // SAFETY: only a filter is written, to a buffer of its length that lives over the call; other requests pass null.
    check(unsafe { libc::syscall(libc::SYS_ptrace, request as i64, tid, address, data) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use isopod_wire::KernelFeatures;

    use super::*;
    use crate::alone::alone;
    use crate::seccomp::sandbox_filter;
    use crate::sys::seccomp::load;

    fn state_of(pid: u32) -> String {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("State:")).unwrap().trim().chars().take(1).collect()
    }

    fn signal(name: &str, pid: u32) {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    }

    #[test]
    fn filters_of_a_thread_are_read_and_it_goes_on_as_it_was() {
        alone("sys::ptrace::tests::filters_of_a_thread_are_read_and_it_goes_on_as_it_was", || {
            let filter = sandbox_filter(KernelFeatures::default());
            let mut without = Command::new("sleep").arg("600").spawn().unwrap();
            assert_eq!(filters_of(without.id()).unwrap(), Vec::<Vec<Instruction>>::new());
            without.kill().unwrap();
            without.wait().unwrap();
            assert_eq!(filters_of(without.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));

            let (child_end, own_end) = std::os::unix::net::UnixStream::pair().unwrap();
            let child = match crate::sys::process::fork().unwrap() {
                crate::sys::process::Fork::Child => {
                    load(&filter).unwrap();
                    load(&filter).unwrap();
                    drop(child_end);
                    loop {
                        std::thread::sleep(Duration::from_secs(1));
                    }
                }
                crate::sys::process::Fork::Parent { pid, .. } => pid,
            };
            drop(child_end);
            // It has both once its end is closed.
            io::Read::read_to_end(&mut &own_end, &mut Vec::new()).unwrap();
            for stopped in [false, true] {
                if stopped {
                    signal("-STOP", child);
                    while state_of(child) != "T" {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                assert_eq!(filters_of(child).unwrap(), [filter.clone(), filter.clone()]);
                let expected = if stopped { "T" } else { "S" };
                let deadline = Instant::now() + STOP_TIMEOUT;
                while state_of(child) != expected {
                    assert!(Instant::now() < deadline, "{} instead of {expected}", state_of(child));
                }
            }
            signal("-KILL", child);
        });
    }
}
