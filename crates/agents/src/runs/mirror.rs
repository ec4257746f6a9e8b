//! Copies of runs' states for external readers, which look where the agent kernel wrote them. The store is the source
//! of truth, so a late or lost copy changes nothing here.

use isopod_store::RunId;
use tokio::sync::mpsc;

/// Notifies the writer of copies that a run has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    /// `None` if there are no external readers.
    changed: Option<mpsc::UnboundedSender<RunId>>,
}

impl Mirror {
    /// A mirror and the receiver of its notifications.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<RunId>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { changed: Some(sender) }, receiver)
    }

    pub(super) fn notify(&self, run: &RunId) {
        if let Some(changed) = &self.changed {
            // The writer ends with the server.
            let _ = changed.send(run.clone());
        }
    }
}
