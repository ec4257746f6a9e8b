//! A live sandbox as everyone but its controller sees it: a snapshot to read and a mailbox for commands.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use isopod_store::{NetworkSettings, SandboxRow, StoreError, TeamId};
use isopod_wire::SandboxId;
use isopod_wire::node::{EndReason, Incarnation, NodeError, PauseMode};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::guest_connection::GuestConnection;
use super::output::Output;
use super::places::NoPlace;
use super::rules::Refusal;
use crate::delivery::Deliveries;
use crate::upstream::Upstreams;

/// A live sandbox.
#[derive(Debug)]
pub struct Sandbox {
    pub(super) id: SandboxId,
    pub(super) team: TeamId,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) endings: mpsc::UnboundedSender<(Incarnation, EndReason)>,
    pub(super) view: watch::Receiver<Arc<View>>,
}

/// A sandbox at one moment.
#[derive(Debug)]
pub struct View {
    /// As recorded.
    pub row: SandboxRow,
    /// What traffic needs; only while it runs.
    pub life: Option<Arc<Life>>,
}

/// A running incarnation, for those who pass traffic on to it.
#[derive(Debug)]
pub struct Life {
    pub(crate) incarnation: Incarnation,
    /// Cancelled when the sandbox stops: all traffic to and from it ends then.
    pub gate: CancellationToken,
    /// Cancelled before the gate when there is no next life: the sandbox has not been paused, it is gone.
    pub(crate) ended: CancellationToken,
    /// Connections to the guest that can be used again.
    pub(crate) upstreams: Upstreams,
    /// How much of its output streams has reached their clients.
    pub(crate) deliveries: Deliveries,
    /// How far the output of its processes was fetched.
    pub(crate) output: Output,
    /// What the server itself does inside goes through it; made when it is first needed.
    pub(super) guest_connection: OnceLock<GuestConnection>,
}

/// What the controller is asked to do.
#[derive(Debug)]
pub(super) enum Command {
    Connect { timeout: Duration, memory: bool, auto_pause: Option<bool>, reply: Reply<bool> },
    SetTimeout { timeout: Duration, reply: Reply<()> },
    Extend { timeout: Duration, reply: Reply<()> },
    Pause { mode: PauseMode, healthy_only: bool, reply: Reply<()> },
    SetNetwork { allow_internet: Option<bool>, network: NetworkSettings, reply: Reply<()> },
    Wake { reply: Reply<()> },
    Kill { reply: Reply<()> },
    Verify { reply: Reply<bool> },
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, ActError>>;

/// Why a command was not granted.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// The guest does not answer and the caller wants it to.
    #[error("the sandbox's guest does not answer")]
    GuestUnresponsive,
    #[error("the node failed")]
    Node(#[source] NodeError),
    #[error("the node took longer than {0:?}")]
    NodeTimeout(Duration),
    #[error("the node did not answer as it should")]
    NodePanicked,
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl Sandbox {
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    pub fn team(&self) -> &TeamId {
        &self.team
    }

    /// How it is now.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Sees to it that it runs for at least `timeout`. Says whether it had to be resumed.
    pub async fn connect(&self, timeout: Duration, memory: bool, auto_pause: Option<bool>) -> Result<bool, ActError> {
        self.ask(|reply| Command::Connect { timeout, memory, auto_pause, reply }).await
    }

    /// Its time is over at `timeout` from now.
    pub async fn set_timeout(&self, timeout: Duration) -> Result<(), ActError> {
        self.ask(|reply| Command::SetTimeout { timeout, reply }).await
    }

    /// Its time is over at `timeout` from now or later.
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

    /// Traffic is waiting for it.
    pub async fn wake(&self) -> Result<(), ActError> {
        self.ask(|reply| Command::Wake { reply }).await
    }

    pub async fn kill(&self) -> Result<(), ActError> {
        self.ask(|reply| Command::Kill { reply }).await
    }

    /// It was not seen on the node: its controller looks again, and ends it if it is gone. Says whether it did.
    pub(super) async fn verify(&self) -> bool {
        self.ask(|reply| Command::Verify { reply }).await.unwrap_or(false)
    }

    /// The node says that this life is over.
    pub(super) fn ended(&self, incarnation: Incarnation, reason: EndReason) {
        // A controller that is gone has ended the sandbox itself.
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
