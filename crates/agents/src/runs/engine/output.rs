//! Turns the output of tool calls into events, a few times a second.

use std::time::Duration;

use isopod_store::{EventKind, RunTurn};
use serde_json::json;
use tokio::time::Instant;

use super::RunTask;
use crate::runs::live_output::LiveOutput;

/// More often, and a fast writer would keep the store busy.
const EVERY: Duration = Duration::from_millis(100);
/// The output of one run that becomes events, in bytes. Results of calls are not part of it.
pub(super) const MAX_RUN: usize = 16 << 20;

impl RunTask {
    /// Records what calls have written so far. Called before anything about the end of a call is recorded.
    pub(super) fn record_output(&mut self) {
        self.output_at = Instant::now() + EVERY;
        for line in self.output.take() {
            if self.output_room == 0 {
                continue;
            }
            let size = line.data.to_string().len();
            self.output_room = self.output_room.saturating_sub(size);
            self.event(EventKind::IntermediateLog, line.node.as_deref(), line.data);
            if self.output_room == 0 {
                let message =
                    format!("the run wrote more than {MAX_RUN} bytes; the results of its nodes have the rest");
                let data = json!({ "category": "INFO", "metadata": "SYSTEM", "message": message });
                self.event(EventKind::IntermediateLog, None, data);
            }
        }
    }
}

/// Waits until there is output to record.
pub(super) async fn output_due(output: &LiveOutput, not_before: Instant) {
    tokio::time::sleep_until(not_before).await;
    output.wait().await;
}

/// Whether a turn changes nothing but the log.
pub(super) fn is_only_output(turn: &RunTurn) -> bool {
    let is_log = !turn.events.is_empty() && turn.events.iter().all(|event| event.kind == EventKind::IntermediateLog);
    is_log && turn.nodes.is_empty() && turn.removed.is_empty() && turn.invocations.is_empty()
}
