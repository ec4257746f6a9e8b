//! Prepares the interpreter for a checkpoint. The gate is closed, so no kernel is being started.

use std::time::Duration;

use rustix::process::Pid;
use tokio::time::Instant;

use super::Interpreter;
use super::context::KernelView;
use super::link::Link;

/// How long kernels may take to read what was sent to them.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a forkserver may take to exit.
const FORKSERVER_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Why there can be no checkpoint now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HoldError {
    #[error("busy: a kernel has not read its last command yet")]
    Unread,
    #[error("busy: the interpreter's forkserver does not exit")]
    Forkserver,
}

impl Interpreter {
    /// Ends the forkserver, and waits until kernels have read what was sent to them. A new forkserver is started when the next
    /// kernel is needed.
    pub(crate) async fn hold(&self) -> Result<(), HoldError> {
        let kernels = self.contexts.kernels();
        if !self.forkserver.end(FORKSERVER_TIMEOUT).await || !wait_for(FORKSERVER_TIMEOUT, || adopted(&kernels)).await {
            return Err(HoldError::Forkserver);
        }
        let read = wait_for(READ_TIMEOUT, || kernels.iter().map(|kernel| &*kernel.link).all(Link::is_read)).await;
        if read { Ok(()) } else { Err(HoldError::Unread) }
    }
}

/// Whether all kernels are the guest's children: only then is their forkserver really gone.
fn adopted(kernels: &[KernelView]) -> bool {
    let own = rustix::process::getpid();
    // Elsewhere than in a sandbox, orphans go to another process.
    !own.is_init() || kernels.iter().all(|kernel| parent(kernel.pid).is_none_or(|parent| parent == own))
}

/// The parent of a process. None if the process is gone.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before the other fields may contain anything, parentheses too.
    let fields = &stat[memchr::memrchr(b')', &stat)? + 2..];
    let parent = fields.split(|byte| *byte == b' ').nth(1)?;
    // The parent of a process that came from outside has no pid here: it counts as another process.
    let parent: i32 = std::str::from_utf8(parent).ok()?.parse().ok()?;
    Some(Pid::from_raw(parent).unwrap_or(pid))
}

async fn wait_for(timeout: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_process_is_known() {
        assert_eq!(parent(rustix::process::getpid()), rustix::process::getppid());
        assert_eq!(parent(Pid::from_raw(i32::MAX).unwrap()), None);
    }
}
