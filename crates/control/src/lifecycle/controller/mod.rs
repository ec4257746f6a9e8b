//! The controller of one sandbox: the task that owns its state. Nobody else changes its row or asks the node about it.
//!
//! What the node reports comes before the clock, and the clock before what the API asks. A write that fails after the
//! node has acted is tried again until it succeeds; what it would have said can be seen on the node in the meantime.

mod end;
mod network;
mod pause;
mod resume;
mod settle;
mod timeout;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Ending, SandboxRow, State};
use isopod_wire::node::{EndReason, Incarnation};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use super::handle::{ActError, Command, Life, Sandbox, View};
use super::output::Output;
use super::places::Place;
use super::rules::{Refusal, Request, Step, decide};
use crate::delivery::Deliveries;
use crate::upstream::Upstreams;
use settle::Pending;

pub(super) struct Controller {
    fleet: Arc<Fleet>,
    row: SandboxRow,
    life: Option<Arc<Life>>,
    /// Held while the sandbox takes a place of its team.
    place: Option<Place>,
    /// Since when it runs, by a clock that never jumps.
    started: Instant,
    /// When its time is over; counts only while it runs.
    deadline: Instant,
    /// When to try again what failed: a removal, or a pause at the end of its time.
    retry: Option<Instant>,
    pause_failures: u32,
    /// A call to the node that nobody waits for any more, but whose end changes what is true.
    pending: Option<Pending>,
    /// The row says more than the store; when to try to write it again.
    unsaved: Option<Instant>,
    commands: mpsc::Receiver<Command>,
    endings: mpsc::UnboundedReceiver<(Incarnation, EndReason)>,
    view: watch::Sender<Arc<View>>,
}

const MAILBOX: usize = 64;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Gives a sandbox that exists on the node a controller, and makes it known.
pub(super) fn adopt(fleet: &Arc<Fleet>, row: SandboxRow, place: Option<Place>) -> Arc<Sandbox> {
    let (commands_in, commands) = mpsc::channel(MAILBOX);
    let (endings_in, endings) = mpsc::unbounded_channel();
    let (started, deadline) = clock_of(fleet, &row);
    let life = match row.state {
        State::Running => new_life(fleet, row.incarnation()),
        _ => None,
    };
    let (view, seen) = watch::channel(Arc::new(View { row: row.clone(), life: life.clone() }));
    let sandbox = Arc::new(Sandbox {
        id: row.id.clone(),
        team: row.team.clone(),
        commands: commands_in,
        endings: endings_in,
        view: seen,
    });
    let retry = matches!(row.state, State::Ending(_)).then(Instant::now);
    let fleet = Arc::clone(fleet);
    fleet.add(Arc::clone(&sandbox));
    let controller = Controller {
        fleet,
        row,
        life,
        place,
        started,
        deadline,
        retry,
        pause_failures: 0,
        pending: None,
        unsaved: None,
        commands,
        endings,
        view,
    };
    tokio::spawn(controller.run());
    sandbox
}

/// Start and end by our own clock. The people's clock may have jumped while nobody looked, so both are held to what is
/// possible at all.
fn clock_of(fleet: &Fleet, row: &SandboxRow) -> (Instant, Instant) {
    let (here, now, longest) = (Instant::now(), Timestamp::now(), fleet.settings.max_lifetime);
    let age = row.started_at.until(now).min(longest);
    let left = now.until(row.ends_at).min(longest);
    (here.checked_sub(age).unwrap_or(here), here + left)
}

fn new_life(fleet: &Fleet, incarnation: Option<Incarnation>) -> Option<Arc<Life>> {
    incarnation.map(|incarnation| {
        Arc::new(Life {
            incarnation,
            gate: CancellationToken::new(),
            ended: CancellationToken::new(),
            upstreams: Upstreams::new(fleet.settings.connections_per_sandbox, fleet.settings.upstream_idle),
            deliveries: Deliveries::default(),
            output: Output::new(),
            guest_connection: OnceLock::new(),
        })
    })
}

impl Controller {
    async fn run(mut self) {
        let stop = self.fleet.stop.clone();
        while !self.is_finished() {
            let retry = self.retry.unwrap_or_else(Instant::now);
            let save = self.unsaved.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some((incarnation, reason)) = self.endings.recv() => self.node_ended(&incarnation, reason).await,
                () = settle::ended(&mut self.pending), if self.pending.is_some() => self.settle().await,
                () = tokio::time::sleep_until(self.deadline), if self.is_timed() => self.expire().await,
                () = tokio::time::sleep_until(retry), if self.retry.is_some() => self.try_again().await,
                () = tokio::time::sleep_until(save), if self.unsaved.is_some() => self.save_or_retry().await,
                // Once it is gone nobody can command any more, but its end may still have to be recorded.
                Some(command) = self.commands.recv() => self.grant(command).await,
            }
        }
        self.cut_traffic();
    }

    /// Gone and recorded as such.
    fn is_finished(&self) -> bool {
        matches!(self.row.state, State::Ended(_)) && self.unsaved.is_none()
    }

    /// Whether the clock counts. After a failed pause it waits for the retry.
    fn is_timed(&self) -> bool {
        self.row.state == State::Running && self.retry.is_none()
    }

    /// A caller that has gone away does not hear the answer; what it asked for is done all the same.
    async fn grant(&mut self, command: Command) {
        match command {
            Command::Connect { timeout, memory, auto_pause, reply } => {
                let _ = reply.send(self.connect(timeout, memory, auto_pause).await);
            }
            Command::SetTimeout { timeout, reply } => {
                let _ = reply.send(self.set_timeout(Request::SetTimeout, timeout).await);
            }
            Command::Extend { timeout, reply } => {
                let _ = reply.send(self.set_timeout(Request::Extend, timeout).await);
            }
            Command::Pause { mode, healthy_only, reply } => {
                let _ = reply.send(self.pause(mode, healthy_only).await);
            }
            Command::SetNetwork { allow_internet, network, reply } => {
                let _ = reply.send(self.set_network(allow_internet, network).await);
            }
            Command::Wake { reply } => {
                let _ = reply.send(self.wake().await);
            }
            Command::Verify { reply } => {
                let _ = reply.send(Ok(self.verify().await));
            }
            Command::Kill { reply } => {
                let _ = reply.send(self.end(Ending::Killed).await);
            }
        }
    }

    async fn try_again(&mut self) {
        self.retry = None;
        // A failed pause needs nothing here: the clock has run out, and strikes again now that it counts.
        if let State::Ending(reason) = self.row.state
            && let Err(error) = self.end(reason).await
        {
            tracing::warn!(sandbox = %self.row.id, error = isopod_wire::error_chain(&error), "still not removed");
        }
    }

    fn decide(&self, request: Request) -> Result<Step, Refusal> {
        decide(self.row.state, request)
    }

    /// The life that the row speaks of. A row without one has nothing on the node.
    fn incarnation(&self) -> Result<Incarnation, ActError> {
        self.row.incarnation().ok_or(ActError::Refused(Refusal::NotFound))
    }

    /// Shows everyone how the sandbox is now.
    fn publish(&self) {
        self.view.send_replace(Arc::new(View { row: self.row.clone(), life: self.life.clone() }));
    }

    /// Ends all traffic into the sandbox, which may live again.
    fn cut_traffic(&mut self) {
        if let Some(life) = self.life.take() {
            life.gate.cancel();
        }
    }

    /// Shows everyone that the sandbox is gone, then ends all traffic into it: whoever loses a stream and asks why hears
    /// that.
    fn end_life(&mut self, state: State) {
        self.row.state = state;
        let life = self.life.take();
        self.publish();
        if let Some(life) = life {
            life.ended.cancel();
            life.gate.cancel();
        }
    }

    /// Records an intent. When that fails nothing has happened yet, and nothing will.
    async fn save_intent(&mut self, row: SandboxRow) -> Result<(), ActError> {
        self.fleet.store.save_sandbox(&row).await?;
        self.row = row;
        self.unsaved = None;
        self.publish();
        Ok(())
    }

    /// Records what has happened. When that fails it is tried again until it succeeds.
    async fn save_or_retry(&mut self) {
        match self.fleet.store.save_sandbox(&self.row).await {
            Ok(()) => self.unsaved = None,
            Err(error) => {
                tracing::warn!(sandbox = %self.row.id, error = isopod_wire::error_chain(&error), "the store is behind");
                self.unsaved = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }
}
