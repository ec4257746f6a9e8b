//! A handle to a live sandbox for everybody but its controller: a snapshot to read and a mailbox for commands.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use isopod_store::{NetworkSettings, SandboxRow, SnapshotSource, StoreError, TeamId};
use isopod_wire::node::{EndReason, Incarnation, NodeError, NodeSnapshot, PauseMode, SnapshotKind};
use isopod_wire::{FeatureError, SandboxId, SnapshotId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::drain::Draining;
use super::guest_connection::GuestConnection;
use super::output::Output;
use super::rules::Refusal;
use super::team_quota::SlotRefusal;
use super::team_slots::TeamLimitReached;
use crate::delivery::Deliveries;
use crate::upstream::Upstreams;

#[derive(Debug)]
pub struct Sandbox {
    pub(super) id: SandboxId,
    pub(super) team: TeamId,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) endings: mpsc::UnboundedSender<(Incarnation, EndReason)>,
    pub(super) view: watch::Receiver<Arc<View>>,
}

/// The state of a sandbox at one moment.
#[derive(Debug)]
pub struct View {
    /// The recorded row.
    pub row: SandboxRow,
    /// What traffic needs. Set only while the sandbox runs.
    pub life: Option<Arc<Life>>,
}

/// A running incarnation, for tasks that forward traffic to it.
#[derive(Debug)]
pub struct Life {
    pub(crate) incarnation: Incarnation,
    /// Cancelled when the sandbox stops, which ends all traffic to and from it.
    pub gate: CancellationToken,
    /// Cancelled before the gate if the sandbox is gone, as opposed to paused.
    pub(crate) ended: CancellationToken,
    /// Reusable connections to the guest.
    pub(crate) upstreams: Upstreams,
    /// How much of its output streams has reached their clients.
    pub(crate) deliveries: Deliveries,
    /// How far the output of its processes was fetched.
    pub(crate) output: Output,
    /// Used by the server for its own calls. Created on first use.
    pub(super) guest_connection: OnceLock<GuestConnection>,
}

/// A command for the controller.
#[derive(Debug)]
pub(super) enum Command {
    Connect { timeout: Duration, memory: bool, auto_pause: Option<bool>, reply: Reply<bool> },
    SetTimeout { timeout: Duration, reply: Reply<()> },
    Extend { timeout: Duration, reply: Reply<()> },
    Pause { mode: PauseMode, healthy_only: bool, reply: Reply<()> },
    SetNetwork { allow_internet: Option<bool>, network: NetworkSettings, reply: Reply<()> },
    Snapshot { id: SnapshotId, kind: SnapshotKind, reply: Reply<NodeSnapshot> },
    Rollback { snapshot: SnapshotSource, reply: Reply<()> },
    Wake { reply: Reply<()> },
    Kill { reply: Reply<()> },
    Verify { reply: Reply<bool> },
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, ActError>>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    TeamLimit(#[from] TeamLimitReached),
    #[error(transparent)]
    Draining(#[from] Draining),
    /// The operator no longer lets the team have a kernel feature of the sandbox.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// The guest does not answer, and the caller requires that it does.
    #[error("the sandbox's guest does not answer")]
    GuestUnresponsive,
    /// The node cannot save memory at all. The text says why and what to do about it.
    #[error("this server cannot save the memory of sandboxes: {0}")]
    NoMemory(String),
    #[error("the node failed")]
    Node(#[source] NodeError),
    #[error("the node took longer than {0:?}")]
    NodeTimeout(Duration),
    #[error("the call to the node panicked")]
    NodePanicked,
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl From<SlotRefusal> for ActError {
    fn from(refusal: SlotRefusal) -> Self {
        match refusal {
            SlotRefusal::Limit(limit) => Self::TeamLimit(limit),
            SlotRefusal::Draining(draining) => Self::Draining(draining),
            SlotRefusal::Store(error) => Self::Store(error),
        }
    }
}

impl Sandbox {
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    pub fn team(&self) -> &TeamId {
        &self.team
    }

    /// Returns the current state.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Ensures that the sandbox runs for at least `timeout`. Returns whether it had to be resumed.
    pub async fn connect(&self, timeout: Duration, memory: bool, auto_pause: Option<bool>) -> Result<bool, ActError> {
        self.ask(|reply| Command::Connect { timeout, memory, auto_pause, reply }).await
    }

    /// Sets the deadline to `timeout` from now.
    pub async fn set_timeout(&self, timeout: Duration) -> Result<(), ActError> {
        self.ask(|reply| Command::SetTimeout { timeout, reply }).await
    }

    /// Extends the deadline to at least `timeout` from now.
    pub(crate) async fn extend(&self, timeout: Duration) -> Result<(), ActError> {
        self.ask(|reply| Command::Extend { timeout, reply }).await
    }

    pub async fn pause(&self, mode: PauseMode, healthy_only: bool) -> Result<(), ActError> {
        self.ask(|reply| Command::Pause { mode, healthy_only, reply }).await
    }

    pub(crate) async fn set_network(
        &self,
        allow_internet: Option<bool>,
        network: NetworkSettings,
    ) -> Result<(), ActError> {
        self.ask(|reply| Command::SetNetwork { allow_internet, network, reply }).await
    }

    /// Takes a snapshot under a new id. The sandbox goes on.
    pub(super) async fn snapshot(&self, id: SnapshotId, kind: SnapshotKind) -> Result<NodeSnapshot, ActError> {
        self.ask(|reply| Command::Snapshot { id, kind, reply }).await
    }

    /// Puts the sandbox back to a snapshot of it.
    pub(crate) async fn rollback(&self, snapshot: SnapshotSource) -> Result<(), ActError> {
        self.ask(|reply| Command::Rollback { snapshot, reply }).await
    }

    /// Resumes the sandbox because traffic waits for it.
    pub async fn wake(&self) -> Result<(), ActError> {
        self.ask(|reply| Command::Wake { reply }).await
    }

    pub async fn kill(&self) -> Result<(), ActError> {
        self.ask(|reply| Command::Kill { reply }).await
    }

    /// Called when a sandbox was not found on the node: its controller checks again, and ends it if it is gone. Returns
    /// whether it did.
    pub(super) async fn verify(&self) -> bool {
        self.ask(|reply| Command::Verify { reply }).await.unwrap_or(false)
    }

    /// Passes the node's report that this life has ended.
    pub(super) fn ended(&self, incarnation: Incarnation, reason: EndReason) {
        // If the controller is gone, it has already ended the sandbox.
        let _ = self.endings.send((incarnation, reason));
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, ActError> {
        let (reply, answer) = oneshot::channel();
        let gone = ActError::Refused(Refusal::NotFound);
        if self.commands.send(command(reply)).await.is_err() {
            return Err(gone);
        }
        answer.await.unwrap_or(Err(gone))
    }
}
