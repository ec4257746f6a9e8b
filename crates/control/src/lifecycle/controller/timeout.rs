//! The timeout of a sandbox: moving it, and what happens when it expires.

use std::time::Duration;

use isopod_store::Ending;
use isopod_store::clock::Timestamp;
use isopod_wire::node::PauseMode;
use tokio::time::Instant;

use super::{Controller, RETRY_AFTER};
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Request, Step};

/// How often a pause at the timeout is attempted before the sandbox is removed.
const PAUSE_ATTEMPTS: u32 = 3;

impl Controller {
    pub(super) async fn set_timeout(&mut self, request: Request, timeout: Duration) -> Result<(), ActError> {
        match self.decide(request)? {
            Step::Extend => self.move_deadline(timeout, true).await,
            _ => self.move_deadline(timeout, false).await,
        }
    }

    /// Moves the deadline to `timeout` from now, within the maximum lifetime. With `extend_only`, a later deadline
    /// stays.
    pub(super) async fn move_deadline(&mut self, timeout: Duration, extend_only: bool) -> Result<(), ActError> {
        let mut row = self.row.clone();
        let (deadline, ends_at) = self.deadline_in(timeout, self.started);
        if extend_only && deadline <= self.deadline {
            return Ok(());
        }
        (row.ends_at, row.timeout) = (ends_at, timeout);
        self.save_intent(row).await?;
        self.deadline = deadline;
        // A failed pause was for the deadline that has just moved.
        (self.retry, self.pause_failures) = (None, 0);
        Ok(())
    }

    /// Returns the same moment by the monotonic clock and by the wall clock.
    pub(super) fn deadline_in(&self, timeout: Duration, started: Instant) -> (Instant, Timestamp) {
        let now = Instant::now();
        let last = started + self.fleet.settings.max_lifetime;
        let timeout = timeout.min(last.saturating_duration_since(now));
        (now + timeout, Timestamp::now().plus(timeout))
    }

    /// Handles the expired timeout.
    pub(super) async fn expire(&mut self) {
        let mode = if self.row.auto_pause_memory { PauseMode::Memory } else { PauseMode::Filesystem };
        let auto_pause = self.row.auto_pause.then_some(mode);
        match self.decide(Request::Expire { auto_pause }) {
            Ok(Step::Pause(mode)) => self.pause_at_end(mode).await,
            Ok(Step::End(reason)) => self.end_logged(reason).await,
            _ => {}
        }
    }

    async fn pause_at_end(&mut self, mode: PauseMode) {
        let Err(error) = self.pause_now(mode).await else { return };
        // A failing store is no reason to lose a sandbox that should be kept.
        self.pause_failures += u32::from(!matches!(error, ActError::Store(_)));
        tracing::warn!(sandbox = %self.row.id, error = isopod_wire::error_chain(&error), "could not pause the sandbox at its timeout");
        if self.pause_failures >= PAUSE_ATTEMPTS {
            self.end_logged(Ending::Timeout).await;
        } else {
            self.retry = Some(Instant::now() + RETRY_AFTER);
        }
    }

    async fn end_logged(&mut self, reason: Ending) {
        if let Err(error) = self.end(reason).await {
            tracing::warn!(sandbox = %self.row.id, error = isopod_wire::error_chain(&error), "could not remove the sandbox; will retry");
        }
    }
}
