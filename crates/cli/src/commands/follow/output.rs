//! Where the command's output goes: straight on, or into one JSON object at the end.

use std::time::Instant;

use bytes::Bytes;
use isopod_wire::SandboxId;
use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Collects or passes on.
#[derive(Debug)]
pub(in crate::commands) struct Report {
    sandbox: SandboxId,
    started: Instant,
    /// With `--json`.
    collected: Option<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Report {
    pub(in crate::commands) fn new(json: bool, sandbox: SandboxId, started: Instant) -> Self {
        Self { sandbox, started, collected: json.then(Collected::default) }
    }

    pub(super) async fn stdout(&mut self, bytes: Bytes) -> std::io::Result<()> {
        match &mut self.collected {
            Some(collected) => {
                collected.stdout.extend_from_slice(&bytes);
                Ok(())
            }
            None => pass_on(tokio::io::stdout(), &bytes).await,
        }
    }

    pub(super) async fn stderr(&mut self, bytes: Bytes) -> std::io::Result<()> {
        match &mut self.collected {
            Some(collected) => {
                collected.stderr.extend_from_slice(&bytes);
                Ok(())
            }
            None => pass_on(tokio::io::stderr(), &bytes).await,
        }
    }

    /// Prints the object, with `--json`. Bytes that are no UTF-8 are replaced.
    pub(super) fn finish(&self, exit_code: u8, timed_out: bool) {
        let Some(collected) = &self.collected else { return };
        let value = json!({
            "sandbox_id": self.sandbox.as_str(),
            "exit_code": exit_code,
            "timed_out": timed_out,
            "stdout": String::from_utf8_lossy(&collected.stdout),
            "stderr": String::from_utf8_lossy(&collected.stderr),
            "duration_ms": self.started.elapsed().as_millis(),
        });
        crate::say::print_json(&value);
    }
}

async fn pass_on(mut to: impl AsyncWrite + Unpin, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}
