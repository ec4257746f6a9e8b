//! Pauses a sandbox. New traffic is held off first; open streams end when the sandbox has stopped.

use std::time::Duration;

use isopod_store::{Ending, EventType, Level, State};
use isopod_wire::node::{NodeError, NodeState, PauseMode};
use serde_json::json;

use super::Controller;
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Refusal, Request};
use crate::upstream::guest_is_healthy;

const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

impl Controller {
    pub(super) async fn pause(&mut self, mode: PauseMode, healthy_only: bool) -> Result<(), ActError> {
        self.decide(Request::Pause(mode))?;
        // Files are complete only if the guest can be asked to write them out.
        let must_answer = healthy_only || mode == PauseMode::Filesystem;
        if must_answer && !self.guest_answers().await {
            return Err(ActError::GuestUnresponsive);
        }
        self.pause_now(mode).await
    }

    /// Pauses a sandbox that is known to run.
    pub(super) async fn pause_now(&mut self, mode: PauseMode) -> Result<(), ActError> {
        let incarnation = self.incarnation()?;
        self.fetch_last_output().await;
        let life = self.life.take();
        let mut intent = self.row.clone();
        intent.state = State::Pausing(mode);
        if let Err(error) = self.save_intent(intent).await {
            self.life = life;
            return Err(error);
        }
        let paused = self.ask_node(|node| async move { node.pause(&incarnation, mode).await }).await;
        self.life = life;
        match paused {
            Ok(()) => self.paused(mode).await,
            // An earlier call that timed out has succeeded after all.
            Err(ActError::Node(NodeError::WrongState { state: NodeState::Frozen | NodeState::Saved, .. })) => {
                self.paused(PauseMode::Memory).await;
            }
            Err(ActError::Node(NodeError::WrongState { state: NodeState::Stopped, .. })) => {
                self.paused(PauseMode::Filesystem).await;
            }
            Err(error) => return self.not_paused(error).await,
        }
        Ok(())
    }

    pub(super) async fn paused(&mut self, mode: PauseMode) {
        self.cut_traffic();
        self.row.state = State::Paused(mode);
        self.slot = None;
        self.pause_failures = 0;
        self.save_or_retry().await;
        self.publish();
        self.fleet.journal.line(&self.row.id, Level::Info, "sandbox paused", &[("mode", format!("{mode:?}"))]);
        self.fleet.journal.event(EventType::Paused, &self.row, json!({}));
    }

    async fn not_paused(&mut self, error: ActError) -> Result<(), ActError> {
        if matches!(error, ActError::Node(NodeError::NotFound(_))) {
            self.gone(Ending::Lost).await;
            return Err(ActError::Refused(Refusal::NotFound));
        }
        // The result of a call that is still running is not known yet.
        if !matches!(error, ActError::NodeTimeout(_)) {
            self.mark_running().await;
        }
        Err(error)
    }

    /// Fetches the output up to now for the log. After the stop, the guest cannot be asked.
    pub(super) async fn fetch_last_output(&self) {
        if let Some(life) = &self.life {
            self.fleet.fetch_last_output(&self.row.id, life).await;
        }
    }

    pub(super) async fn guest_answers(&self) -> bool {
        let Some(life) = &self.life else { return false };
        let asked = guest_is_healthy(self.fleet.node.as_ref(), &life.incarnation);
        tokio::time::timeout(HEALTH_TIMEOUT, asked).await.unwrap_or(false)
    }
}
