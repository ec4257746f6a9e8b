//! Pauses and resumes a sandbox.

use isopod_store::service::{ServiceSandbox, Status};

use super::access::{Access, Operation};
use super::{Service, ServiceError};

impl Service {
    pub(crate) async fn pause(&self, access: &Access, id: &str) -> Result<ServiceSandbox, ServiceError> {
        let mut row = self.find(access, Operation::Write, id).await?;
        let sandbox = live_sandbox(&row)?;
        if let Err(error) = self.backend.pause(&sandbox).await {
            return Err(self.explain(&row, error).await);
        }
        row.status = Status::Paused;
        self.store.save_service_sandbox(&row).await?;
        self.publish_status(&row);
        Ok(row)
    }

    /// Resumes a sandbox. It counts against the quotas again, and is counted before it runs: of two that resume at
    /// once, one finds the quota used up.
    pub(crate) async fn resume(&self, access: &Access, id: &str) -> Result<ServiceSandbox, ServiceError> {
        let mut row = self.find(access, Operation::Write, id).await?;
        let sandbox = live_sandbox(&row)?;
        let _resuming = self.resuming.begin(&row.id);
        if row.status == Status::Paused {
            let quotas = self.quotas_of(&row.team).await?;
            if let Some(exceeded) = self.store.begin_resuming(&row, &quotas).await? {
                return Err(exceeded.into());
            }
        }
        if let Err(error) = self.backend.resume(&sandbox, row.timeout).await {
            if row.status == Status::Paused {
                self.store.end_resuming(&row.id).await?;
            }
            return Err(self.explain(&row, error).await);
        }
        row.status = Status::Running;
        self.store.save_service_sandbox(&row).await?;
        self.publish_status(&row);
        Ok(row)
    }
}

/// The backend's id of a sandbox that has not ended.
pub(super) fn live_sandbox(row: &ServiceSandbox) -> Result<isopod_wire::SandboxId, ServiceError> {
    match (&row.sandbox, row.destroyed_at) {
        (Some(sandbox), None) => Ok(sandbox.clone()),
        _ => Err(ServiceError::NotRunning(row.status)),
    }
}
