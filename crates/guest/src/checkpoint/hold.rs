//! `POST /checkpoint/hold`: from here on the guest starts nothing, signals nobody and sends nothing to processes.

use std::time::Duration;

use isopod_wire::checkpoint::Held;
use tokio::task::AbortHandle;

use crate::checkpoint::root::Root;
use crate::checkpoint::{Checkpoint, Phase, conflict, failed};
use crate::gate::Closed;
use crate::http::{HttpError, Reply, json_reply};

/// How long something that has begun may take, such as the start of a kernel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A sandbox that is held.
#[derive(Debug)]
pub(super) struct Hold {
    /// Dropped first: the root must be gone when the gate opens.
    pub(super) root: Root,
    _closed: Closed,
    _expiry: Expiry,
}

/// Ends the hold after a while, unless it has ended before.
#[derive(Debug)]
struct Expiry(AbortHandle);

impl Expiry {
    fn new(checkpoint: Checkpoint) -> Self {
        let expire = tokio::spawn(async move {
            tokio::time::sleep(checkpoint.max_hold).await;
            *checkpoint.phase.lock().await = Phase::Running;
        });
        Self(expire.abort_handle())
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn hold(checkpoint: &Checkpoint) -> Result<Reply, HttpError> {
    let mut phase = checkpoint.phase.lock().await;
    if !matches!(*phase, Phase::Running) {
        return Err(conflict("the sandbox is held already"));
    }
    let closed = checkpoint.gate.close(CLOSE_TIMEOUT).await;
    let closed = closed.ok_or_else(|| conflict("busy: a kernel or a command is being started"))?;
    if let Some(interpreter) = &checkpoint.interpreter {
        interpreter.hold().await.map_err(|error| conflict(error.to_string()))?;
    }
    let root = Root::start().map_err(|error| failed(error.to_string()))?;
    let held = describe(checkpoint, &root)?;
    *phase = Phase::Held(Hold { root, _closed: closed, _expiry: Expiry::new(checkpoint.clone()) });
    Ok(json_reply(&held))
}

fn describe(checkpoint: &Checkpoint, root: &Root) -> Result<Held, HttpError> {
    let connections = checkpoint.processes.connections();
    let mut connections = connections.map_err(|error| failed(format!("cannot read a connection: {error}")))?;
    connections.extend(checkpoint.interpreter.iter().flat_map(|interpreter| interpreter.connections()));
    Ok(Held { root: root.pid.as_raw_nonzero().get().unsigned_abs(), connections })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gate::Gate;
    use crate::logs::Logs;
    use crate::metrics::Meters;
    use crate::proc_overrides::ProcOverrides;
    use crate::process::Processes;

    fn checkpoint(max_hold: Duration) -> Checkpoint {
        let gate = Gate::default();
        let meters = Arc::new(Meters::new(None, None, None));
        let processes = Processes::new(Arc::<Logs>::default(), Arc::new(ProcOverrides::new(meters)), gate.clone());
        Checkpoint { max_hold, ..Checkpoint::new(gate, Arc::new(processes), None, Arc::default(), Arc::default()) }
    }

    #[tokio::test]
    async fn a_hold_that_nobody_releases_ends_by_itself() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let checkpoint = checkpoint(Duration::from_millis(50));
        hold(&checkpoint).await.unwrap();
        assert_eq!(hold(&checkpoint).await.unwrap_err().message, "the sandbox is held already");
        let root = match &*checkpoint.phase.lock().await {
            Phase::Held(hold) => hold.root.pid,
            other => panic!("not held: {other:?}"),
        };
        // Whoever waits at the gate passes it.
        checkpoint.gate.pass().await;
        let status = rustix::process::waitpid(Some(root), rustix::process::WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
    }
}
