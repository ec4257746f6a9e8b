//! One task per run. It owns the run's state. Everyone else sends it commands and reads the store.
//!
//! ```text
//! loop:  what happened (an outcome, a command, a timer)  →  rules change the state  →  ready nodes are marked
//!        →  all of it is one transaction  →  only then it takes effect: nodes start, callers get replies
//! ```
//!
//! So everything is recorded before it is done. After a crash, the next server reads the run and continues: a finished
//! node is finished, and a node that was running is started again.

mod change;
mod clock;
mod delegate;
mod finish;
mod handle;
mod load;
mod output;
mod perform;
mod settle;
mod soft;
mod start;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub(crate) use handle::{Command, Refusal, Request};
pub(crate) use perform::Outcome;

use isopod_store::{NodeRow, RunRow, TeamId};

use super::graph::{Graph, Verdict};
use super::live_output::LiveOutput;
use super::shared::Shared;
use change::Changes;
pub(crate) use finish::End;
pub(super) use load::{NewRun, TaskHandles, new_task};
use output::{is_only_output, output_due};

/// A run and everything that only its task may touch.
pub(super) struct RunTask {
    shared: Arc<Shared>,
    row: RunRow,
    graph: Graph,
    nodes: HashMap<String, NodeRow>,
    /// The position of the next new node.
    next_place: i64,
    next_invocation: i64,
    /// The current attempt of each running node.
    open: HashMap<String, OpenAttempt>,
    /// Failed nodes that may be tried again.
    retrying: HashSet<String>,
    /// Nodes of which an attempt was begun since the server started.
    begun: HashSet<String>,
    performing: JoinSet<(String, Outcome)>,
    commands: mpsc::Receiver<Request>,
    /// The number of the last recorded event. Written here, read by watchers.
    seen: watch::Sender<i64>,
    /// What tool calls write while they run.
    output: Arc<LiveOutput>,
    /// Not earlier does output become events.
    output_at: tokio::time::Instant,
    /// How much more output becomes events.
    output_room: usize,
    changes: Changes,
    /// Decided, but possibly not recorded yet.
    end: Option<End>,
}

/// An attempt in progress.
#[derive(Clone, Debug)]
struct OpenAttempt {
    id: String,
    number: i64,
    began: Instant,
}

impl RunTask {
    pub(super) fn team(&self) -> &TeamId {
        &self.row.team
    }

    /// Runs to the end, or until the server stops. Then the run stays as recorded.
    pub(super) async fn run(mut self) {
        loop {
            self.start_ready();
            self.decide_end();
            if self.end.is_some() {
                self.finish().await;
            }
            self.set_clocks();
            if !self.commit().await || self.row.status.is_terminal() {
                break;
            }
            self.perform_started();
            if !self.wait_for_something().await {
                break;
            }
        }
        self.shared.cleanup_wanted.notify_one();
    }

    /// Returns false if the server stops.
    async fn wait_for_something(&mut self) -> bool {
        let wake = self.until_next_moment();
        let stop = self.shared.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            Some(done) = self.performing.join_next() => self.settle_joined(done),
            command = self.commands.recv() => match command {
                Some(request) => self.handle(request),
                // All senders are gone, because the server is being dropped.
                None => return false,
            },
            () = tokio::time::sleep(wake) => self.expire(),
            () = output_due(&self.output, self.output_at) => self.record_output(),
        }
        while let Some(done) = self.performing.try_join_next() {
            self.settle_joined(done);
        }
        true
    }

    /// Decides whether the run has ended by itself.
    fn decide_end(&mut self) {
        if self.end.is_some() {
            return;
        }
        match self.graph.verdict() {
            Verdict::Working => {}
            Verdict::Completed => self.end = Some(End::Completed),
            Verdict::Blocked(nodes) => self.end = Some(End::blocked(&nodes)),
        }
    }

    /// Records the turn and notifies watchers. Retries if the store fails. Returns false if the server stops before
    /// that succeeds.
    async fn commit(&mut self) -> bool {
        let turn = self.take_turn();
        let mut wait = Duration::from_millis(100);
        while let Err(error) = self.shared.ledger.commit(&turn).await {
            tracing::warn!(run = %self.row.id, error = isopod_wire::error_chain(&error), "could not record a turn of a run; retrying");
            tokio::select! {
                () = self.shared.stop.cancelled() => return false,
                () = tokio::time::sleep(wait) => {}
            }
            wait = (wait * 2).min(Duration::from_secs(5));
        }
        self.seen.send_replace(self.row.last_seq);
        if !is_only_output(&turn) {
            self.shared.mirror.notify(&self.row.id);
        }
        self.shared.live_logs.publish(&self.row.id, &turn.events);
        for (reply, answer) in self.changes.replies.drain(..) {
            // The caller may be gone.
            let _ = reply.send(answer);
        }
        true
    }
}
