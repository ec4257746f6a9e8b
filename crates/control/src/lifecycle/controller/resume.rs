//! Resumes a paused sandbox, because its owner connects or because traffic arrives.

use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Ending, EventType, Level, State};
use isopod_wire::node::{Incarnation, NodeApi, NodeError, NodeState, PauseMode};
use serde_json::json;
use tokio::time::Instant;

use super::{Controller, new_life};
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Refusal, Request, Step};

impl Controller {
    /// Returns whether the sandbox had to be resumed.
    pub(super) async fn connect(
        &mut self,
        timeout: Duration,
        memory: bool,
        auto_pause: Option<bool>,
    ) -> Result<bool, ActError> {
        match self.decide(Request::Connect { memory })? {
            Step::Resume(mode) => {
                self.resume(From::Pause(mode), timeout, auto_pause).await?;
                Ok(true)
            }
            Step::Restart => {
                self.resume(From::Files, timeout, auto_pause).await?;
                Ok(true)
            }
            _ => {
                self.move_deadline(timeout, true).await?;
                Ok(false)
            }
        }
    }

    pub(super) async fn wake(&mut self) -> Result<(), ActError> {
        match self.decide(Request::Wake { auto_resume: self.row.auto_resume })? {
            Step::Resume(mode) => self.resume(From::Pause(mode), self.row.timeout, None).await,
            _ => Ok(()),
        }
    }

    async fn resume(&mut self, from: From, timeout: Duration, auto_pause: Option<bool>) -> Result<(), ActError> {
        // The operator may have taken a grant back while the sandbox was paused.
        self.fleet.settings.features.check(&self.row.team.0, &self.row.metadata)?;
        let incarnation = self.incarnation()?;
        let slot = self.fleet.slot_for_resume(&self.row.team).await?;
        let mut intent = self.row.clone();
        intent.state = State::Resuming(from.mode());
        // The new deadline is part of the intent, because a server that adopts the half-resumed sandbox needs it.
        let started = Instant::now();
        (intent.started_at, intent.timeout) = (Timestamp::now(), timeout);
        let (deadline, ends_at) = self.deadline_in(timeout, started);
        intent.ends_at = ends_at;
        intent.auto_pause = auto_pause.unwrap_or(intent.auto_pause);
        self.save_intent(intent).await?;
        (self.slot, self.started, self.deadline) = (Some(slot), started, deadline);
        let asked = self.ask_node_for_memory(move |node| async move {
            if from == From::Files {
                forget_memory(node.as_ref(), &incarnation).await?;
            }
            node.resume(&incarnation).await
        });
        let resumed = match asked.await {
            // An earlier call that timed out has succeeded after all.
            Err(ActError::Node(NodeError::WrongState { state: NodeState::Running, incarnation })) => Ok(incarnation),
            resumed => resumed,
        };
        match resumed {
            Ok(incarnation) => {
                self.row.execution = Some(incarnation.execution);
                self.resumed().await;
                Ok(())
            }
            Err(error) => self.not_resumed(from, error).await,
        }
    }

    pub(super) async fn resumed(&mut self) {
        self.row.state = State::Running;
        self.life = new_life(&self.fleet, self.row.incarnation());
        self.save_or_retry().await;
        self.publish();
        self.fleet.journal.line(&self.row.id, Level::Info, "sandbox resumed", &[]);
        self.fleet.journal.event(EventType::Resumed, &self.row, json!({}));
    }

    async fn not_resumed(&mut self, from: From, error: ActError) -> Result<(), ActError> {
        if matches!(error, ActError::Node(NodeError::NotFound(_))) {
            self.gone(Ending::Lost).await;
            return Err(ActError::Refused(Refusal::NotFound));
        }
        // The result of a call that is still running is not known yet.
        match (&error, from) {
            (ActError::NodeTimeout(_), _) => {}
            // Only the node knows whether the memory was discarded before the failure.
            (_, From::Files) => self.settle().await,
            (_, From::Pause(mode)) => {
                self.row.state = State::Paused(mode);
                self.slot = None;
                self.save_or_retry().await;
                self.publish();
            }
        }
        Err(error)
    }
}

/// What a sandbox is resumed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// Everything that the pause has kept.
    Pause(PauseMode),
    /// Only the files, although the memory was kept too.
    Files,
}

impl From {
    fn mode(self) -> PauseMode {
        match self {
            Self::Pause(mode) => mode,
            Self::Files => PauseMode::Filesystem,
        }
    }
}

async fn forget_memory(node: &dyn NodeApi, incarnation: &Incarnation) -> Result<(), NodeError> {
    match node.pause(incarnation, PauseMode::Filesystem).await {
        // An earlier call has already done it.
        Err(NodeError::WrongState { state: NodeState::Stopped, .. }) => Ok(()),
        done => done,
    }
}
