//! Copies of runs' states for readers outside, who look where the agent kernel wrote them. The store stays the truth:
//! a copy that is late or lost changes nothing here.

use isopod_store::RunId;
use tokio::sync::mpsc;

/// Hears that a run has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    /// To whoever writes the copies; none when there are no such readers.
    changed: Option<mpsc::UnboundedSender<RunId>>,
}

impl Mirror {
    /// A mirror and what it hears.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<RunId>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { changed: Some(sender) }, receiver)
    }

    pub(super) fn note(&self, run: &RunId) {
        if let Some(changed) = &self.changed {
            // The writer ends with the server.
            let _ = changed.send(run.clone());
        }
    }
}
