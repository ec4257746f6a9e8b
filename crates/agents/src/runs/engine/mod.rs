//! One task per run. It owns the run's state; everyone else sends it commands and reads the store.
//!
//! ```text
//! loop:  what happened (an outcome, a command, a moment)  →  rules change the state  →  what may start is marked
//!        →  all of it is one transaction  →  only then it is acted on: nodes start, callers are answered
//! ```
//!
//! So what is done was always recorded before. After a crash the next server reads the run and goes on: a finished node
//! is finished, a node that was running is started again.

mod change;
mod clock;
mod delegate;
mod finish;
mod handle;
mod load;
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

use isopod_store::{NodeRow, RunRow};

use super::graph::{Graph, Verdict};
use super::shared::Shared;
use change::Changes;
pub(crate) use finish::End;
pub(super) use load::{Ends, NewRun, new_task};

/// A run and everything that only its task may touch.
pub(super) struct RunTask {
    shared: Arc<Shared>,
    row: RunRow,
    graph: Graph,
    nodes: HashMap<String, NodeRow>,
    /// Where the next new node goes in the order.
    next_place: i64,
    next_invocation: i64,
    /// The attempt that is under way at each running node.
    open: HashMap<String, OpenAttempt>,
    /// Nodes that have failed and may be tried again.
    retrying: HashSet<String>,
    performing: JoinSet<(String, Outcome)>,
    commands: mpsc::Receiver<Request>,
    /// The number of the last event that was recorded. Written here, read by those who watch.
    seen: watch::Sender<i64>,
    changes: Changes,
    /// Decided, but perhaps not recorded yet.
    end: Option<End>,
}

/// An attempt under way.
#[derive(Clone, Debug)]
struct OpenAttempt {
    id: String,
    number: i64,
    began: Instant,
}

impl RunTask {
    /// Runs to the end, or until the server stops; then the run is left as it is recorded.
    pub(super) async fn run(mut self) {
        loop {
            self.start_ready();
            self.judge();
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

    /// False when the server stops.
    async fn wait_for_something(&mut self) -> bool {
        let wake = self.until_next_moment();
        let stop = self.shared.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            Some(done) = self.performing.join_next() => self.settle_joined(done),
            command = self.commands.recv() => match command {
                Some(request) => self.handle(request),
                // Nobody holds the other end any more: the server is being dropped.
                None => return false,
            },
            () = tokio::time::sleep(wake) => self.expire(),
        }
        while let Some(done) = self.performing.try_join_next() {
            self.settle_joined(done);
        }
        true
    }

    /// Decides whether the run is over by itself.
    fn judge(&mut self) {
        if self.end.is_some() {
            return;
        }
        match self.graph.verdict() {
            Verdict::Working => {}
            Verdict::Completed => self.end = Some(End::Completed),
            Verdict::Blocked(nodes) => self.end = Some(End::blocked(&nodes)),
        }
    }

    /// Records the turn and lets others know. A store that fails is asked again; false when the server stops before
    /// that helps.
    async fn commit(&mut self) -> bool {
        let turn = self.take_turn();
        let mut wait = Duration::from_millis(100);
        while let Err(error) = self.shared.ledger.commit(&turn).await {
            tracing::warn!(run = %self.row.id, error = isopod_wire::error_chain(&error), "a run goes on when the store does");
            tokio::select! {
                () = self.shared.stop.cancelled() => return false,
                () = tokio::time::sleep(wait) => {}
            }
            wait = (wait * 2).min(Duration::from_secs(5));
        }
        self.seen.send_replace(self.row.last_seq);
        self.shared.mirror.note(&self.row.id);
        for (reply, answer) in self.changes.replies.drain(..) {
            // Whoever asked may have left.
            let _ = reply.send(answer);
        }
        true
    }
}
