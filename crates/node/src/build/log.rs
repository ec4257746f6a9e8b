//! What a build tells while it goes on.

use std::time::SystemTime;

use isopod_wire::build::{BuildEvent, BuildLevel, BuildPhase};
use tokio::sync::mpsc;

/// Tells about one phase.
#[derive(Clone, Debug)]
pub(super) struct Log {
    events: mpsc::Sender<BuildEvent>,
    phase: BuildPhase,
}

impl Log {
    pub(super) fn new(events: mpsc::Sender<BuildEvent>) -> Self {
        Self { events, phase: BuildPhase::Base }
    }

    pub(super) fn at(&self, phase: BuildPhase) -> Self {
        Self { events: self.events.clone(), phase }
    }

    pub(super) fn phase(&self) -> BuildPhase {
        self.phase
    }

    pub(super) async fn info(&self, message: impl Into<String>) {
        self.tell(BuildLevel::Info, message.into()).await;
    }

    pub(super) async fn warn(&self, message: impl Into<String>) {
        self.tell(BuildLevel::Warn, message.into()).await;
    }

    pub(super) async fn error(&self, message: impl Into<String>) {
        self.tell(BuildLevel::Error, message.into()).await;
    }

    /// As [`Log::info`], from where nobody can wait. When too much is told at once it is left out.
    pub(super) fn try_info(&self, message: String) {
        let event = BuildEvent { at: SystemTime::now(), level: BuildLevel::Info, phase: self.phase, message };
        let _ = self.events.try_send(event);
    }

    async fn tell(&self, level: BuildLevel, message: String) {
        let event = BuildEvent { at: SystemTime::now(), level, phase: self.phase, message };
        // A build goes on when nobody listens.
        let _ = self.events.send(event).await;
    }
}
