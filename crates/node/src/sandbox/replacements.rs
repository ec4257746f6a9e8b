//! One execution of a sandbox takes the place of another: in a resume, or in a rollback.
//!
//! For a moment, both have a record with an owner. The newer one names the other, so that the sandbox is never there twice,
//! whenever the server dies.

use std::sync::Arc;

use isopod_wire::ExecutionId;
use isopod_wire::node::NodeError;

use super::adopt::lives;
use super::pause::save;
use super::{Inner, Sandbox, Sandboxes};
use crate::disposal::{Remains, dispose};
use crate::provision::Provisioner;
use crate::record::Record;

impl Sandboxes {
    /// Gives up an execution that another one has replaced, so that the next server removes it if this one dies first. What
    /// was saved is never used again from here on.
    ///
    /// # Errors If its record cannot be saved. Nothing has changed then.
    pub(super) fn give_up_replaced(&self, old: &Sandbox, inner: &mut Inner) -> Result<Remains, NodeError> {
        let remains = Remains::of(&inner.record, &self.provisioner.home);
        let spec = inner.record.spec.take();
        if let Err(error) = save(old, inner, "give up") {
            inner.record.spec = spec;
            return Err(error);
        }
        inner.ending = true;
        drop(inner.processes.take());
        Ok(remains)
    }

    /// Removes what is left of an execution: its record and its saved memory.
    pub(super) async fn remove_replaced(&self, remains: Remains) {
        let provisioner = Arc::clone(&self.provisioner);
        // A panic leaves a record, which the next start finds.
        let _ = tokio::task::spawn_blocking(move || dispose(&provisioner.host, &remains)).await;
    }

    /// After the death of a server, keeps one of an execution and the one that it replaces, if both are there. Records that
    /// cannot be read are left to whoever adopts them.
    pub(super) async fn settle_replacement(&self, execution: &ExecutionId) {
        let load = |execution: &ExecutionId| Record::load(&self.provisioner.home.execution_directory(execution)).ok();
        let Some(new) = load(execution).filter(has_owner) else { return };
        let Some(former) = new.replaces.as_ref().and_then(load).filter(has_owner) else { return };
        let (kept, other) = match lives(&new) {
            Ok(true) => (new, former),
            // What was saved is still there.
            Ok(false) => (former, new),
            Err(_) => return,
        };
        tracing::info!(kept = %kept.execution, removed = %other.execution, "an earlier server died while one took the other's place");
        let remains = remains_beside(&other, &kept, &self.provisioner);
        let mut given_up = other;
        given_up.spec = None;
        let directory = self.provisioner.home.execution_directory(&given_up.execution);
        if let Err(error) = given_up.save(&directory) {
            tracing::warn!(execution = %given_up.execution, %error, "could not give up an execution");
        }
        self.remove_replaced(remains).await;
    }
}

fn has_owner(record: &Record) -> bool {
    record.spec.is_some()
}

/// A resumed sandbox uses the writable layer of its former execution.
fn remains_beside(other: &Record, kept: &Record, provisioner: &Provisioner) -> Remains {
    let mut remains = Remains::of(other, &provisioner.home);
    if other.area == kept.area {
        remains.area = None;
    }
    remains
}
