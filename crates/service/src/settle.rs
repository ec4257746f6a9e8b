//! Updates a row from the backend. What the backend no longer has, has ended.

use isopod_store::clock::Timestamp;
use isopod_store::service::{RecordedEnd, ServiceSandbox, Status};
use isopod_store::{Ending, State};
use isopod_wire::SandboxId;

use super::backend::{BackendError, BackendState, ErrorKind};
use super::{Service, ServiceError};

impl Service {
    /// The up-to-date row. If the backend is unavailable, the row stays as it is.
    pub(crate) async fn settled(&self, row: ServiceSandbox) -> Result<ServiceSandbox, ServiceError> {
        let (true, Some(sandbox)) = (row.destroyed_at.is_none(), row.sandbox.clone()) else { return Ok(row) };
        match self.backend.status(&sandbox).await {
            Ok(found) => self.seen(row, found.state).await,
            Err(error) if error.kind() == ErrorKind::NotFound => self.vanished(row).await,
            Err(error) => {
                self.metrics.failure(error.kind().text());
                tracing::debug!(
                    sandbox = row.id,
                    error = isopod_wire::error_chain(&error),
                    "could not ask the backend"
                );
                Ok(row)
            }
        }
    }

    /// The sandbox exists, in this state.
    pub(super) async fn seen(
        &self,
        mut row: ServiceSandbox,
        state: BackendState,
    ) -> Result<ServiceSandbox, ServiceError> {
        let status = match state {
            BackendState::Running => Status::Running,
            BackendState::Paused => Status::Paused,
        };
        if row.status != status && row.status != Status::Creating && !self.resuming.has(&row.id) {
            row.status = status;
            self.store.save_service_sandbox(&row).await?;
            self.publish_status(&row);
        }
        Ok(row)
    }

    /// The sandbox is gone without a report: by its timeout, or by a failure.
    pub(super) async fn vanished(&self, row: ServiceSandbox) -> Result<ServiceSandbox, ServiceError> {
        let reason = match &row.sandbox {
            // A sandbox that is ending knows the reason before the store does.
            Some(id) => match self.ending_of(id) {
                Some(ending) => RecordedEnd::Reason(ending.text().to_owned()),
                None => self.store.end_reason(id).await?,
            },
            None => RecordedEnd::Unknown,
        };
        let reason = match reason {
            RecordedEnd::Reason(reason) => reason,
            RecordedEnd::Unknown => "lost".to_owned(),
            // It is ending just now. The next call learns why.
            RecordedEnd::NotYet => return Ok(row),
        };
        let status = if ["killed", "timeout"].contains(&reason.as_str()) { Status::Stopped } else { Status::Error };
        self.ended(row, status, reason).await
    }

    fn ending_of(&self, id: &SandboxId) -> Option<Ending> {
        match self.fleet.find(id)?.view().row.state {
            State::Ending(ending) | State::Ended(ending) => Some(ending),
            _ => None,
        }
    }

    /// Records an end, once.
    pub(super) async fn ended(
        &self,
        mut row: ServiceSandbox,
        status: Status,
        reason: String,
    ) -> Result<ServiceSandbox, ServiceError> {
        row.status = status;
        row.reason = Some(reason);
        row.destroyed_at = Some(Timestamp::now());
        if self.store.save_service_sandbox(&row).await? {
            self.metrics.ended(row.reason.as_deref().unwrap_or_default());
            if status == Status::Error {
                tracing::warn!(
                    sandbox = row.id,
                    agent = row.agent,
                    task = row.task,
                    reason = row.reason,
                    "a sandbox ended with an error"
                );
            }
            self.publish_status(&row);
            return Ok(row);
        }
        // Another call was faster, and knew the reason.
        let known = self.store.find_service_sandbox(&row.id).await?;
        Ok(known.unwrap_or(row))
    }

    /// The error for a call if the backend does not have a sandbox that runs according to our row.
    pub(super) async fn explain(&self, row: &ServiceSandbox, error: BackendError) -> ServiceError {
        self.note_failure(Some(&row.id), row.agent.as_deref(), row.task.as_deref(), &error);
        if error.kind() == ErrorKind::NotFound
            && let Ok(settled) = self.settled(row.clone()).await
            && settled.destroyed_at.is_some()
        {
            return ServiceError::NotRunning(settled.status);
        }
        error.into()
    }

    /// Counts a failed call to the backend. What the caller can't change is logged.
    pub(super) fn note_failure(
        &self,
        sandbox: Option<&str>,
        agent: Option<&str>,
        task: Option<&str>,
        error: &BackendError,
    ) {
        let kind = error.kind();
        self.metrics.failure(kind.text());
        if !matches!(kind, ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Invalid) {
            let error = isopod_wire::error_chain(error);
            tracing::warn!(sandbox, agent, task, kind = kind.text(), error, "a call to the backend failed");
        }
    }
}
