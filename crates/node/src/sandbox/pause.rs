//! Pauses a sandbox.

use isopod_isolation::cgroup::CgroupError;
use isopod_wire::node::{Incarnation, NodeError, NodeState, PauseMode};

use super::save_memory::remove;
use super::{Inner, Sandbox, Sandboxes};

impl Sandboxes {
    pub(crate) async fn pause(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut inner = sandbox.inner.lock().await;
        if inner.ending {
            return Err(NodeError::NotFound(incarnation.clone()));
        }
        match (inner.state(), mode) {
            (NodeState::Running, PauseMode::Memory) => freeze(&sandbox, &mut inner).await,
            (NodeState::Saved, PauseMode::Filesystem) => forget_memory(&sandbox, &mut inner).await,
            // Frozen processes are killed directly: what they wrote is already in the page cache.
            (NodeState::Running | NodeState::Frozen, PauseMode::Filesystem) => {
                self.stop_processes(&sandbox, &mut inner).await
            }
            (state, _) => Err(NodeError::WrongState { incarnation: incarnation.clone(), state }),
        }
    }

    /// Ends the processes and keeps the files. The record is updated before they end. Otherwise, after a crash in
    /// between, the end would look like a failure, and the files would be removed. The files are on disk before the record
    /// says that they are kept, and what is written until the end follows.
    async fn stop_processes(&self, sandbox: &Sandbox, inner: &mut Inner) -> Result<(), NodeError> {
        self.sync_files(sandbox, inner, "pause").await?;
        inner.record.state = NodeState::Stopped;
        save(sandbox, inner, "pause")?;
        self.end_processes(sandbox, inner).await
    }
}

/// The record is updated first. What a crash in between leaves is removed with the sandbox.
async fn forget_memory(sandbox: &Sandbox, inner: &mut Inner) -> Result<(), NodeError> {
    inner.record.state = NodeState::Stopped;
    save(sandbox, inner, "pause").inspect_err(|_| inner.record.state = NodeState::Saved)?;
    remove(&sandbox.directory).await;
    Ok(())
}

async fn freeze(sandbox: &Sandbox, inner: &mut Inner) -> Result<(), NodeError> {
    let Some(processes) = &inner.processes else {
        return Err(NodeError::NotFound(sandbox.incarnation.clone()));
    };
    let cgroup = processes.cgroup.clone();
    let frozen = tokio::task::spawn_blocking(move || cgroup.freeze()).await;
    frozen.map_err(|error| failed(sandbox, "pause", error))?.map_err(|error| match error.io().kind() {
        std::io::ErrorKind::TimedOut => NodeError::NotStopped(sandbox.incarnation.clone()),
        _ => failed(sandbox, "pause", error),
    })?;
    inner.record.state = NodeState::Frozen;
    save(sandbox, inner, "pause").inspect_err(|_| {
        // It must not stay frozen while everyone believes that it runs. If the server dies here, the next one fixes it.
        inner.record.state = NodeState::Running;
        if let Some(processes) = &inner.processes {
            undo(sandbox, processes.cgroup.thaw());
        }
    })
}

/// Logs a failed undo, because nothing else is tried before the sandbox is adopted or ended.
pub(super) fn undo(sandbox: &Sandbox, done: Result<(), CgroupError>) {
    if let Err(error) = done {
        tracing::error!(incarnation = %sandbox.incarnation, %error, "could not undo an incomplete pause or resume");
    }
}

pub(super) fn save(sandbox: &Sandbox, inner: &Inner, what: &'static str) -> Result<(), NodeError> {
    inner.record.save(&sandbox.directory).map_err(|error| failed(sandbox, what, error))
}

pub(super) fn failed(
    sandbox: &Sandbox,
    what: &'static str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> NodeError {
    NodeError::Failed { what, incarnation: sandbox.incarnation.clone(), source: error.into() }
}
