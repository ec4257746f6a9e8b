//! The timers of a run: its deadline, the deadline for an approval, the next attempt at a node.
//!
//! The time of a run stops while it only waits for a person.

use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{NodeState, RunStatus};

use super::{End, RunTask};

/// The clock is read at least this often, in case someone sets it.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// The default time for an approval.
const DEFAULT_APPROVAL_MS: u64 = 24 * 3600 * 1000;

impl RunTask {
    /// Updates the status and the timers to match what runs and what waits.
    pub(super) fn set_clocks(&mut self) {
        if self.row.status.is_terminal() {
            (self.row.deadline_at, self.row.time_left_ms, self.row.approval_until) = (None, None, None);
            return;
        }
        let now = Timestamp::now();
        let awaiting = self.row.paused.is_some() || self.graph.waiting() > 0;
        self.row.status = if awaiting { RunStatus::AwaitingApproval } else { RunStatus::Running };
        self.row.approval_until = match (awaiting, self.row.approval_until) {
            (false, _) => None,
            (true, Some(until)) => Some(until),
            (true, None) => {
                let patience = self.row.settings.approval_timeout_ms.unwrap_or(DEFAULT_APPROVAL_MS);
                Some(now.plus(Duration::from_millis(patience)))
            }
        };
        let is_idle = awaiting && self.graph.running() == 0;
        match (is_idle, self.row.deadline_at, self.row.time_left_ms) {
            (true, Some(deadline), _) => {
                self.row.time_left_ms = i64::try_from(now.until(deadline).as_millis()).ok();
                self.row.deadline_at = None;
            }
            (false, None, Some(left)) => {
                self.row.deadline_at = Some(now.plus(Duration::from_millis(u64::try_from(left).unwrap_or(0))));
                self.row.time_left_ms = None;
            }
            _ => {}
        }
    }

    pub(super) fn until_next_moment(&self) -> Duration {
        let now = Timestamp::now();
        let retries = self.delayed().map(|(_, at)| at);
        let moments = [self.row.deadline_at, self.row.approval_until].into_iter().flatten().chain(retries);
        moments.map(|at| now.until(at)).min().unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
    }

    /// Ends the run if its deadline or that of an approval has passed.
    pub(super) fn expire(&mut self) {
        let now = Timestamp::now();
        let is_over = |moment: Option<Timestamp>| moment.is_some_and(|at| at <= now);
        if is_over(self.row.deadline_at) {
            self.end = Some(End::failed("timed_out", "the run took longer than its timeout_ms"));
        } else if is_over(self.row.approval_until) {
            self.end = Some(End::failed("approval_expired", "nobody approved in time"));
        }
    }

    /// Failed nodes that will be tried again, with the time.
    pub(super) fn delayed(&self) -> impl Iterator<Item = (&str, Timestamp)> {
        let moment = |id: &'_ String| {
            let node = self.nodes.get(id).filter(|node| node.state == NodeState::Pending);
            node.and_then(|node| node.next_at)
        };
        self.retrying.iter().filter_map(move |id| moment(id).map(|at| (id.as_str(), at)))
    }
}
