//! Ending a sandbox. One that is gone already is fine.

use std::sync::Arc;

use isopod_control::lifecycle::record_usage;
use isopod_store::service::{ServiceSandbox, Status};

use super::access::{Access, Aim};
use super::{Service, ServiceError};

impl Service {
    /// Ends it in the caller's name.
    pub(crate) async fn destroy(self: &Arc<Self>, access: &Access, id: &str) -> Result<ServiceSandbox, ServiceError> {
        let row = self.find(access, Aim::Change, id).await?;
        self.end(row, "destroyed").await
    }

    /// Ends one whose client hung up before it learned of it. What fails here, the sandbox's own deadline ends.
    pub(crate) async fn end_unanswered(self: &Arc<Self>, row: ServiceSandbox) {
        let id = row.id.clone();
        if let Err(error) = self.end(row, "client_gone").await {
            tracing::warn!(
                sandbox = id,
                error = isopod_wire::error_chain(&error),
                "its client hung up, and it is not gone"
            );
        }
    }

    /// Ends it for a reason. Runs to its end even when the caller goes away.
    pub(super) async fn end(
        self: &Arc<Self>,
        row: ServiceSandbox,
        reason: &'static str,
    ) -> Result<ServiceSandbox, ServiceError> {
        if row.destroyed_at.is_some() {
            return Ok(row);
        }
        let service = Arc::clone(self);
        let ending = tokio::spawn(async move { service.end_to_the_end(row, reason).await });
        ending.await.unwrap_or(Err(ServiceError::Aborted))
    }

    async fn end_to_the_end(&self, row: ServiceSandbox, reason: &'static str) -> Result<ServiceSandbox, ServiceError> {
        if let Some(sandbox) = &row.sandbox {
            // What a short life used would otherwise never be read.
            if let Some(live) = self.fleet.find(sandbox) {
                record_usage(&self.fleet, &live).await;
            }
            if let Err(error) = self.backend.destroy(sandbox).await {
                self.metrics.failure(error.kind().text());
                return Err(error.into());
            }
        } else {
            // It is being made: whoever makes it finds the row ended, and this finds what a dead maker left.
            self.remove_labelled(&row.create_key).await;
        }
        self.ended(row, Status::Stopped, reason.to_owned()).await
    }
}
