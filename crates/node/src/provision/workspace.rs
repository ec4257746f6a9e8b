//! Mounts an owner's subtrees of the workspace in a sandbox.

use std::sync::Arc;

use isopod_wire::node::WorkspaceMount;

use super::Provisioner;
use crate::record::Record;
use crate::workspace::{self, Mounting, ServedPart, WorkspaceError};

impl Provisioner {
    /// Mounts an owner's subtrees of the workspace in a sandbox whose guest runs.
    pub(crate) fn mount_workspace(
        &self,
        record: &Record,
        mounts: &[WorkspaceMount],
        mounting: Mounting,
    ) -> Result<(), WorkspaceError> {
        let Some(init) = &record.init else { return Err(WorkspaceError::Ended) };
        let server = self.host.workspace.get().map(Arc::as_ref);
        workspace::mount_all(&*self.backend, server, &record.execution, init, mounts, mounting)
    }

    /// The subtrees of the workspace that are served now. `None` if that is unknown or there is no workspace.
    pub(crate) fn served_parts(&self) -> Option<Vec<ServedPart>> {
        let served = self.host.workspace.get()?.served();
        served.inspect_err(|error| tracing::warn!(%error, "cannot find out what is served of the workspace")).ok()
    }

    /// Mounts subtrees again that are no longer served, as after the storage daemon died.
    pub(crate) fn restore_workspace(&self, record: &Record, served: &[ServedPart]) {
        let lost = lost_mounts(record, served);
        if lost.is_empty() {
            return;
        }
        tracing::info!(execution = %record.execution, "its workspace is no longer served; mounting it again");
        if let Err(error) = self.mount_workspace(record, &lost, Mounting::Replace) {
            tracing::warn!(execution = %record.execution, error = &error as &dyn std::error::Error, "could not mount its workspace again; will retry");
        }
    }
}

/// The mounts of a sandbox that are not served.
pub(crate) fn lost_mounts(record: &Record, served: &[ServedPart]) -> Vec<WorkspaceMount> {
    let owner = record.execution.as_str();
    let is_served =
        |mount: &WorkspaceMount| served.iter().any(|part| part.owner == owner && part.subtree == mount.subtree);
    let mounts = record.spec.iter().flat_map(|spec| &spec.mounts);
    mounts.filter(|mount| !is_served(mount)).cloned().collect()
}
