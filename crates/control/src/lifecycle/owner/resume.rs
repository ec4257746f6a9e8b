//! Running a paused sandbox again, because its owner connects or because traffic has come.

use std::time::Duration;

use isopod_wire::node::{NodeError, NodeState, PauseMode};
use serde_json::json;
use tokio::time::Instant;

use super::{Owner, new_life};
use crate::clock::Timestamp;
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Refusal, Request, Step};
use crate::lifecycle::state::{Ending, State};
use crate::store::{EventType, Level};

impl Owner {
    /// Says whether it had to be resumed.
    pub(super) async fn connect(
        &mut self,
        timeout: Duration,
        memory: bool,
        auto_pause: Option<bool>,
    ) -> Result<bool, ActError> {
        match self.decide(Request::Connect { memory })? {
            Step::Resume(mode) => {
                self.resume(mode, timeout, auto_pause).await?;
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
            Step::Resume(mode) => self.resume(mode, self.row.timeout, None).await,
            _ => Ok(()),
        }
    }

    async fn resume(&mut self, mode: PauseMode, timeout: Duration, auto_pause: Option<bool>) -> Result<(), ActError> {
        let incarnation = self.incarnation()?;
        let place = self.fleet.places.take_for_resume(&self.row.team)?;
        let mut intent = self.row.clone();
        intent.state = State::Resuming(mode);
        // The end of its new time is part of the intent: a server that adopts it half resumed goes by it.
        let started = Instant::now();
        (intent.started_at, intent.timeout) = (Timestamp::now(), timeout);
        let (deadline, ends_at) = self.deadline_in(timeout, started);
        intent.ends_at = ends_at;
        intent.auto_pause = auto_pause.unwrap_or(intent.auto_pause);
        self.save_intent(intent).await?;
        (self.place, self.started, self.deadline) = (Some(place), started, deadline);
        let resumed = match self.ask_node(|node| async move { node.resume(&incarnation).await }).await {
            // An earlier call that we gave up waiting for has done it after all.
            Err(ActError::Node(NodeError::WrongState { state: NodeState::Running, incarnation })) => Ok(incarnation),
            resumed => resumed,
        };
        match resumed {
            Ok(incarnation) => {
                self.row.execution = Some(incarnation.execution);
                self.resumed().await;
                Ok(())
            }
            Err(error) => self.not_resumed(mode, error).await,
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

    async fn not_resumed(&mut self, mode: PauseMode, error: ActError) -> Result<(), ActError> {
        if matches!(error, ActError::Node(NodeError::NotFound(_))) {
            self.gone(Ending::Lost).await;
            return Err(ActError::Refused(Refusal::NotFound));
        }
        // Nobody knows yet how a call ends that is still under way.
        if !matches!(error, ActError::NodeTimeout(_)) {
            self.row.state = State::Paused(mode);
            self.place = None;
            self.save_or_retry().await;
            self.publish();
        }
        Err(error)
    }
}
