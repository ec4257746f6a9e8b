//! Extends an interactive sandbox's timeout.

use std::time::Duration;

use isopod_client::{Client, SandboxId};
use tokio::task::JoinHandle;

const EVERY: Duration = Duration::from_secs(60);
/// Longer than the interval, so that one that gets lost does no harm.
const FOR: Duration = Duration::from_secs(180);

/// Extends a sandbox's time until it is dropped. The time is never made shorter.
#[derive(Debug)]
pub(super) struct KeepAlive(JoinHandle<()>);

impl KeepAlive {
    pub(super) fn start(client: Client, sandbox: SandboxId) -> Self {
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                // The next one may succeed; a sandbox that is gone is noticed by whoever uses it.
                let _ = client.connect(&sandbox, Some(FOR)).await;
            }
        }))
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.abort();
    }
}
