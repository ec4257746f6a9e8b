//! The log messages of a build.

use std::time::SystemTime;

use isopod_wire::build::{BuildEvent, BuildLevel, BuildPhase};
use tokio::sync::mpsc;

/// Sends the messages of one phase.
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
        self.send(BuildLevel::Info, message.into()).await;
    }

    pub(super) async fn warn(&self, message: impl Into<String>) {
        self.send(BuildLevel::Warn, message.into()).await;
    }

    pub(super) async fn error(&self, message: impl Into<String>) {
        self.send(BuildLevel::Error, message.into()).await;
    }

    /// As [`Log::info`], from code that cannot wait. If the channel is full, the message is dropped.
    pub(super) fn try_info(&self, message: String) {
        let event = BuildEvent { at: SystemTime::now(), level: BuildLevel::Info, phase: self.phase, message };
        let _ = self.events.try_send(event);
    }

    async fn send(&self, level: BuildLevel, message: String) {
        let event = BuildEvent { at: SystemTime::now(), level, phase: self.phase, message };
        // A build continues if nobody listens.
        let _ = self.events.send(event).await;
    }
}
