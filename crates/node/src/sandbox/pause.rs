//! Stopping a sandbox without losing it.

use std::sync::Arc;

use isopod_isolation::cgroup::CgroupError;
use isopod_wire::node::{Incarnation, NodeError, NodeState, PauseMode};

use super::{Fleet, Life, Sandbox};
use crate::disposal::{Remains, stop};

impl Fleet {
    pub(crate) async fn pause(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut life = sandbox.life.lock().await;
        if life.ending {
            return Err(NodeError::NotFound(incarnation.clone()));
        }
        match (life.state(), mode) {
            (NodeState::Running, PauseMode::Memory) => freeze(&sandbox, &mut life).await,
            // Frozen processes are killed as they are: what they wrote is with the kernel already.
            (NodeState::Running | NodeState::Frozen, PauseMode::Filesystem) => {
                self.stop_processes(&sandbox, &mut life).await
            }
            (state, _) => Err(NodeError::WrongState { incarnation: incarnation.clone(), state }),
        }
    }

    /// Ends the processes and keeps the files. The record says so before they end, so that a crash in between cannot
    /// make the end look like an accident that takes the files with it.
    async fn stop_processes(&self, sandbox: &Sandbox, life: &mut Life) -> Result<(), NodeError> {
        life.record.state = NodeState::Stopped;
        save(sandbox, life, "pause")?;
        drop(life.processes.take());
        let provisioner = Arc::clone(&self.provisioner);
        let remains = Remains::of(&life.record, &provisioner.home);
        let stopped = tokio::task::spawn_blocking(move || stop(&provisioner.host, &remains)).await;
        stopped.map_err(|error| failed(sandbox, "pause", error))?;
        life.record.init = None;
        life.record.slot = None;
        life.record.owner = None;
        save(sandbox, life, "pause")
    }
}

async fn freeze(sandbox: &Sandbox, life: &mut Life) -> Result<(), NodeError> {
    let Some(processes) = &life.processes else {
        return Err(NodeError::NotFound(sandbox.incarnation.clone()));
    };
    let cgroup = processes.cgroup.clone();
    let frozen = tokio::task::spawn_blocking(move || cgroup.freeze()).await;
    frozen.map_err(|error| failed(sandbox, "pause", error))?.map_err(|error| match error.io().kind() {
        std::io::ErrorKind::TimedOut => NodeError::NotStopped(sandbox.incarnation.clone()),
        _ => failed(sandbox, "pause", error),
    })?;
    life.record.state = NodeState::Frozen;
    save(sandbox, life, "pause").inspect_err(|_| {
        // It must not stand still while everyone believes that it runs. A server that dies here leaves that to the next.
        life.record.state = NodeState::Running;
        if let Some(processes) = &life.processes {
            undo(sandbox, processes.cgroup.thaw());
        }
    })
}

/// Tells what could not be undone: nothing else will be tried before the sandbox is adopted or ended.
pub(super) fn undo(sandbox: &Sandbox, done: Result<(), CgroupError>) {
    if let Err(error) = done {
        tracing::error!(incarnation = %sandbox.incarnation, %error, "could not undo half a pause or resume");
    }
}

pub(super) fn save(sandbox: &Sandbox, life: &Life, what: &'static str) -> Result<(), NodeError> {
    life.record.save(&sandbox.directory).map_err(|error| failed(sandbox, what, error))
}

pub(super) fn failed(
    sandbox: &Sandbox,
    what: &'static str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> NodeError {
    NodeError::Failed { what, incarnation: sandbox.incarnation.clone(), source: error.into() }
}
