//! Drains the server for maintenance of its host: from then on it creates and resumes no sandboxes, and the memory of those
//! that are paused goes to disk. Running sandboxes go on. A restart of the server ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isopod_wire::SandboxId;
use isopod_wire::node::{NodeState, NotSaved};

use super::fleet::Fleet;

/// When a client that was refused may try again. Maintenance takes longer, but another server may take over.
pub const DRAIN_RETRY: Duration = Duration::from_secs(10);

/// The refusal of everything that would start a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this server is being drained for maintenance, and creates and resumes no sandboxes")]
pub struct Draining;

/// Whether the server is being drained.
#[derive(Debug, Default)]
pub(super) struct DrainSwitch(AtomicBool);

/// What a drain has found and done.
#[derive(Debug, Default)]
pub(crate) struct DrainReport {
    /// Sandboxes that run.
    pub(crate) running: Vec<SandboxId>,
    /// Paused sandboxes that need the host's memory no more.
    pub(crate) saved: Vec<SandboxId>,
    /// Paused sandboxes whose memory is still in RAM, and why.
    pub(crate) not_saved: Vec<(SandboxId, String)>,
}

impl Fleet {
    /// Refuses if the server is being drained.
    pub(super) fn check_admits(&self) -> Result<(), Draining> {
        if self.draining.0.load(Ordering::Relaxed) { Err(Draining) } else { Ok(()) }
    }

    /// Begins a drain, or goes on with it, and waits until paused sandboxes are saved, but not longer than this. Saving goes on
    /// after that.
    pub(crate) async fn drain(self: &Arc<Self>, deadline: Duration) -> DrainReport {
        if !self.draining.0.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "draining: no sandboxes are created or resumed until an operator ends it or the server restarts"
            );
        }
        let node = Arc::clone(&self.node);
        let saving = tokio::spawn(async move { node.save_paused().await });
        let failed = match tokio::time::timeout(deadline, saving).await {
            Ok(Ok(failed)) => failed,
            _ => Vec::new(),
        };
        self.report(&failed).await
    }

    /// Ends a drain.
    pub(crate) fn uncordon(&self) {
        if self.draining.0.swap(false, Ordering::Relaxed) {
            tracing::info!("the drain has ended");
        }
    }

    async fn report(&self, failed: &[NotSaved]) -> DrainReport {
        let mut report = DrainReport::default();
        for sandbox in self.node.list().await {
            let id = sandbox.incarnation.sandbox.clone();
            match sandbox.state {
                NodeState::Running => report.running.push(id),
                NodeState::Saved | NodeState::Stopped => report.saved.push(id),
                NodeState::Frozen => {
                    let of_it = failed.iter().find(|failed| failed.incarnation == sandbox.incarnation);
                    let reason = of_it.map_or("it is still being saved", |failed| &failed.reason);
                    report.not_saved.push((id, reason.to_owned()));
                }
            }
        }
        report.running.sort();
        report.saved.sort();
        report.not_saved.sort();
        report
    }
}
