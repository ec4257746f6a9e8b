//! Reads signals from a descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

use super::check;

/// Signals that are queued for reading instead of interrupting, until this is dropped.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: i32,
    /// Whether a process sent it. Otherwise the kernel did, as for a key of a terminal, to all processes that the key
    /// concerns.
    pub is_sent: bool,
}

impl Signals {
    /// Blocks these signals for the calling thread, which must be the only one.
    pub fn take(numbers: &[i32]) -> io::Result<Self> {
        let set = set_of(numbers);
        let before = change_mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set is initialised and lives over the call; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(libc::c_long::from(fd))?;
        // SAFETY: the kernel has just made it, and nobody else knows it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// Returns the next received signal, if any.
    pub fn next(&self) -> io::Result<Option<Received>> {
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: all-zero bytes are a valid value of this structure of integers.
        let mut info = unsafe { std::mem::zeroed::<libc::signalfd_siginfo>() };
        // SAFETY: the buffer is as large as the length says, and lives over the call.
        match check(unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) } as libc::c_long) {
            // A process cannot pretend to be the kernel, because its codes are not above zero.
            Ok(_) => Ok(Some(Received { number: info.ssi_signo as i32, is_sent: info.ssi_code <= 0 })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // The old mask is always valid.
        let _ = change_mask(libc::SIG_SETMASK, &self.before);
    }
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Unblocks these signals for the calling thread: a child has its parent's mask, and passes it to its program.
pub fn unblock(numbers: &[i32]) -> io::Result<()> {
    change_mask(libc::SIG_UNBLOCK, &set_of(numbers)).map(drop)
}

fn set_of(numbers: &[i32]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set before it is read; a number that is no signal only makes sigaddset fail.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for &number in numbers {
            libc::sigaddset(&raw mut set, number);
        }
        set
    }
}

/// Returns the previous mask.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    // SAFETY: both sets are initialised and live over the call.
    unsafe {
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        match libc::pthread_sigmask(how, set, &raw mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_was_taken_is_read_with_its_sender() {
        // Only to this thread, because the test harness has others.
        let signals = Signals::take(&[libc::SIGUSR1]).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        // SAFETY: takes two integers; the signal is blocked in this thread.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGUSR1) };
        assert_eq!(signals.next().unwrap(), Some(Received { number: libc::SIGUSR1, is_sent: true }));
        assert_eq!(signals.next().unwrap(), None);
        drop(signals);
        let before = change_mask(libc::SIG_BLOCK, &set_of(&[])).unwrap();
        // SAFETY: the set is initialised.
        assert_eq!(unsafe { libc::sigismember(&raw const before, libc::SIGUSR1) }, 0, "the mask is what it was");
    }
}
