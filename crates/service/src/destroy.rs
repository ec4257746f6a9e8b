//! Ends a sandbox. It is not an error if it is already gone.

use std::sync::Arc;

use isopod_control::lifecycle::record_usage;
use isopod_store::service::{ServiceSandbox, Status};

use super::access::{Access, Operation};
use super::{Service, ServiceError};

impl Service {
    /// Ends it on behalf of the caller.
    pub(crate) async fn destroy(self: &Arc<Self>, access: &Access, id: &str) -> Result<ServiceSandbox, ServiceError> {
        let row = self.find(access, Operation::Write, id).await?;
        self.end(row, "destroyed").await
    }

    /// Ends a sandbox whose client disconnected before it got the reply. If this fails, the sandbox ends by its own
    /// timeout.
    pub(crate) async fn end_unanswered(self: &Arc<Self>, row: ServiceSandbox) {
        let id = row.id.clone();
        if let Err(error) = self.end(row, "client_gone").await {
            tracing::warn!(
                sandbox = id,
                error = isopod_wire::error_chain(&error),
                "its client disconnected, and it could not be ended"
            );
        }
    }

    /// Ends it for a reason. Continues even if the caller goes away.
    pub(super) async fn end(
        self: &Arc<Self>,
        row: ServiceSandbox,
        reason: &'static str,
    ) -> Result<ServiceSandbox, ServiceError> {
        if row.destroyed_at.is_some() {
            return Ok(row);
        }
        let service = Arc::clone(self);
        let ending = tokio::spawn(async move { service.end_now(row, reason).await });
        ending.await.unwrap_or(Err(ServiceError::Aborted))
    }

    async fn end_now(&self, row: ServiceSandbox, reason: &'static str) -> Result<ServiceSandbox, ServiceError> {
        if let Some(sandbox) = &row.sandbox {
            // Otherwise the usage of a short-lived sandbox would never be read.
            if let Some(live) = self.fleet.find(sandbox) {
                record_usage(&self.fleet, &live).await;
            }
            if let Err(error) = self.backend.destroy(sandbox).await {
                self.note_failure(Some(&row.id), row.agent.as_deref(), row.task.as_deref(), &error);
                return Err(error.into());
            }
        } else {
            // It is being created. Its creator finds the row ended. This finds what a dead creator left.
            self.remove_labelled(&row.create_key).await;
        }
        self.ended(row, Status::Stopped, reason.to_owned()).await
    }
}
