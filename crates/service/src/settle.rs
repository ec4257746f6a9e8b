//! Making a row say what is so: the backend is asked, and what it does not have any more has ended.

use isopod_store::clock::Timestamp;
use isopod_store::service::{RecordedEnd, ServiceSandbox, Status};
use isopod_store::{Ending, State};
use isopod_wire::SandboxId;

use super::backend::{BackendError, BackendState, ErrorKind};
use super::{Service, ServiceError};

impl Service {
    /// The row as it is now. A backend that cannot be asked leaves it as it was.
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
                    "the backend was not asked"
                );
                Ok(row)
            }
        }
    }

    /// It is there, in this state.
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
            self.tell_status(&row);
        }
        Ok(row)
    }

    /// It is gone and nobody told us: by its own time, or by an accident.
    pub(super) async fn vanished(&self, row: ServiceSandbox) -> Result<ServiceSandbox, ServiceError> {
        let reason = match &row.sandbox {
            // One that is on its way out knows why before the store does.
            Some(id) => match self.ending_of(id) {
                Some(ending) => RecordedEnd::Reason(ending.text().to_owned()),
                None => self.store.end_reason(id).await?,
            },
            None => RecordedEnd::Unknown,
        };
        let reason = match reason {
            RecordedEnd::Reason(reason) => reason,
            RecordedEnd::Unknown => "lost".to_owned(),
            // Just now: whoever asks next learns why.
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
                    "a sandbox ended badly"
                );
            }
            self.tell_status(&row);
            return Ok(row);
        }
        // Somebody was faster, and knew why.
        let known = self.store.find_service_sandbox(&row.id).await?;
        Ok(known.unwrap_or(row))
    }

    /// What to answer when the backend says that a sandbox is not there which our row says runs.
    pub(super) async fn explain(&self, row: &ServiceSandbox, error: BackendError) -> ServiceError {
        self.metrics.failure(error.kind().text());
        if error.kind() == ErrorKind::NotFound
            && let Ok(settled) = self.settled(row.clone()).await
            && settled.destroyed_at.is_some()
        {
            return ServiceError::NotRunning(settled.status);
        }
        error.into()
    }
}
