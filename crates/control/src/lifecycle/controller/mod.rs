//! The controller of one sandbox: the task that owns its state. Only the controller changes the sandbox's row and calls
//! the node for it.
//!
//! Reports of the node have priority over the clock, and the clock over API requests. If a write fails after the node
//! has acted, it is retried until it succeeds. Meanwhile, the node shows the actual state.

mod end;
mod network;
mod pause;
mod resume;
mod rollback;
mod settle;
mod snapshot;
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
use super::rules::{Refusal, Request, Step, decide};
use super::team_slots::TeamSlot;
use crate::delivery::Deliveries;
use crate::upstream::Upstreams;
use settle::Pending;

pub(super) struct Controller {
    fleet: Arc<Fleet>,
    row: SandboxRow,
    life: Option<Arc<Life>>,
    /// Held while the sandbox counts against its team's limit.
    slot: Option<TeamSlot>,
    /// The start of the current run by the monotonic clock.
    started: Instant,
    /// When the timeout expires. Applies only while the sandbox runs.
    deadline: Instant,
    /// When to retry what failed: a removal, or a pause at the timeout.
    retry: Option<Instant>,
    pause_failures: u32,
    /// A call to the node that no caller waits for any more, but whose result matters.
    pending: Option<Pending>,
    /// Set if the row is newer than the store: when to try to write it again.
    unsaved: Option<Instant>,
    commands: mpsc::Receiver<Command>,
    endings: mpsc::UnboundedReceiver<(Incarnation, EndReason)>,
    view: watch::Sender<Arc<View>>,
}

const MAILBOX: usize = 64;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Starts a controller for a sandbox that exists on the node, and adds it to the fleet.
pub(super) fn adopt(fleet: &Arc<Fleet>, row: SandboxRow, slot: Option<TeamSlot>) -> Arc<Sandbox> {
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
        slot,
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

/// Returns start and deadline by the monotonic clock. The wall clock may have jumped while no server was running, so
/// both are limited to the maximum lifetime.
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
                () = tokio::time::sleep_until(retry), if self.retry.is_some() => self.retry().await,
                () = tokio::time::sleep_until(save), if self.unsaved.is_some() => self.save_or_retry().await,
                // After its end, the sandbox gets no more commands, but its end may still have to be recorded.
                Some(command) = self.commands.recv() => self.handle(command).await,
            }
        }
        self.cut_traffic();
    }

    /// Whether the sandbox is gone and its end is recorded.
    fn is_finished(&self) -> bool {
        matches!(self.row.state, State::Ended(_)) && self.unsaved.is_none()
    }

    /// Whether the timeout applies. After a failed pause, the controller waits for the retry.
    fn is_timed(&self) -> bool {
        self.row.state == State::Running && self.retry.is_none()
    }

    /// Executes a command. If the caller has disconnected, it misses the reply, but the command is executed all the
    /// same.
    async fn handle(&mut self, command: Command) {
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
            Command::Snapshot { id, kind, reply } => {
                let _ = reply.send(self.snapshot(id, kind).await);
            }
            Command::Rollback { snapshot, reply } => {
                let _ = reply.send(self.rollback(snapshot).await);
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

    async fn retry(&mut self) {
        self.retry = None;
        // A failed pause needs nothing here: the deadline has passed, so it fires again.
        if let State::Ending(reason) = self.row.state
            && let Err(error) = self.end(reason).await
        {
            tracing::warn!(sandbox = %self.row.id, error = isopod_wire::error_chain(&error), "could not remove the sandbox; will retry");
        }
    }

    fn decide(&self, request: Request) -> Result<Step, Refusal> {
        decide(self.row.state, request)
    }

    /// Returns the incarnation in the row. A row without one has nothing on the node.
    fn incarnation(&self) -> Result<Incarnation, ActError> {
        self.row.incarnation().ok_or(ActError::Refused(Refusal::NotFound))
    }

    /// Publishes the current state.
    fn publish(&self) {
        self.view.send_replace(Arc::new(View { row: self.row.clone(), life: self.life.clone() }));
    }

    /// Ends all traffic to the sandbox, which may be resumed later.
    fn cut_traffic(&mut self) {
        if let Some(life) = self.life.take() {
            life.gate.cancel();
        }
    }

    /// Publishes that the sandbox is gone, then ends all traffic to it. This order ensures that a client that loses a
    /// stream and asks for the reason gets the right answer.
    fn end_life(&mut self, state: State) {
        self.row.state = state;
        let life = self.life.take();
        self.publish();
        if let Some(life) = life {
            life.ended.cancel();
            life.gate.cancel();
        }
    }

    /// Records an intent. If that fails, nothing has happened yet, and nothing will.
    async fn save_intent(&mut self, row: SandboxRow) -> Result<(), ActError> {
        self.fleet.store.save_sandbox(&row).await?;
        self.row = row;
        self.unsaved = None;
        self.publish();
        Ok(())
    }

    /// Records what has happened. If that fails, it is retried until it succeeds.
    async fn save_or_retry(&mut self) {
        match self.fleet.store.save_sandbox(&self.row).await {
            Ok(()) => self.unsaved = None,
            Err(error) => {
                tracing::warn!(sandbox = %self.row.id, error = isopod_wire::error_chain(&error), "could not record a sandbox; will retry");
                self.unsaved = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }
}
