//! Puts a running sandbox back to a snapshot of it.

use std::sync::Arc;

use isopod_wire::node::{CreateError, Incarnation, InitialSnapshot, NodeError, NodeState, SandboxSpec};

use super::Sandboxes;
use super::create_from_snapshot::Relation;
use super::pause::failed;
use crate::disposal::Remains;
use crate::provision::ReadySandbox;

impl Sandboxes {
    /// The sandbox goes on until the one from the snapshot is there, and then makes way for it.
    pub(crate) async fn rollback(
        self: &Arc<Self>,
        incarnation: &Incarnation,
        from: &InitialSnapshot,
    ) -> Result<Incarnation, NodeError> {
        let old = self.get(incarnation)?;
        let mut inner = old.inner.lock().await;
        let (NodeState::Running, false, Some(spec)) = (inner.state(), inner.ending, inner.record.spec.clone()) else {
            return Err(NodeError::WrongState { incarnation: incarnation.clone(), state: inner.state() });
        };
        let itself = Relation::Itself { host_name: inner.record.host_name.clone() };
        let (mut ready, spec) = self.start_again_from(from, spec, itself).await.map_err(|error| match error {
            CreateError::Memory(reason) => NodeError::Memory { incarnation: incarnation.clone(), reason },
            CreateError::NoMemory(reason) => NodeError::NoMemory { incarnation: incarnation.clone(), reason },
            other => failed(&old, "roll back", other),
        })?;
        let new = Incarnation { sandbox: incarnation.sandbox.clone(), execution: ready.record.execution.clone() };
        ready.record.replaces = Some(incarnation.execution.clone());
        // From here on, calls that name the old execution find nothing.
        inner.ending = true;
        let entered = self.enter(ready, spec, new).await.map_err(|error| failed(&old, "roll back", error));
        if entered.is_err() {
            inner.ending = false;
            return entered;
        }
        let remains = self.give_up_replaced(&old, &mut inner).unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(incarnation = %old.incarnation, error, "could not give up an earlier execution");
            Remains::of(&inner.record, &self.provisioner.home)
        });
        self.remove_replaced(remains).await;
        entered
    }

    async fn start_again_from(
        self: &Arc<Self>,
        from: &InitialSnapshot,
        spec: SandboxSpec,
        itself: Relation,
    ) -> Result<(ReadySandbox, SandboxSpec), CreateError> {
        let snapshot = self.snapshots.get(&from.id).ok_or_else(|| CreateError::UnknownSnapshot(from.id.clone()))?;
        let memory = if from.files_only { None } else { self.memory_of(&snapshot)? };
        self.start_from_snapshot(snapshot, memory, spec, itself).await
    }
}
