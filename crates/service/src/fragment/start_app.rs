//! Starts the app of a fragment and waits until it listens. A URL that leads nowhere would help nobody.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use isopod_store::service::ServiceSandbox;
use isopod_wire::SandboxId;
use tokio::time::{Instant, sleep};

use super::{FailedStep, FragmentOutcome, Step};
use crate::access::Access;
use crate::backend::Command;
use crate::execute::Running;
use crate::pause::live_sandbox;
use crate::{Service, ServiceError, StreamEvent};

const FIRST_WAIT: Duration = Duration::from_millis(20);
const MAX_WAIT: Duration = Duration::from_millis(500);
/// How much of each stream of the app is kept for an error.
const KEPT_OUTPUT: usize = 64 << 10;

impl Service {
    pub(super) async fn start_app(
        self: &Arc<Self>,
        access: &Access,
        row: &ServiceSandbox,
        port: u16,
        line: Option<&str>,
    ) -> Result<FragmentOutcome, ServiceError> {
        let sandbox = live_sandbox(row)?;
        match line {
            None => self.wait_for_port(row, &sandbox, port).await?,
            Some(line) => self.start_and_wait(access, row, &sandbox, port, line).await?,
        }
        let host = match self.backend.host(&sandbox, port).await {
            Ok(host) => host,
            Err(error) => return Err(self.explain(row, error).await.in_step(Step::Start)),
        };
        Ok(FragmentOutcome::Serving { port, host })
    }

    /// Starts the app as a command that outlives this call, in the history like any other.
    async fn start_and_wait(
        self: &Arc<Self>,
        access: &Access,
        row: &ServiceSandbox,
        sandbox: &SandboxId,
        port: u16,
        line: &str,
    ) -> Result<(), ServiceError> {
        let mut command = Command::shell(line);
        command.timeout = self.fleet.max_lifetime();
        let app = self.start(access, &row.id, command).await.map_err(|error| error.in_step(Step::Start))?;
        let mut written = Written::default();
        let waited = tokio::select! {
            waited = self.wait_for_port(row, sandbox, port) => waited,
            ended = written.follow(app) => Err(ServiceError::StepFailed(Box::new(ended))),
        };
        waited.map_err(|error| written.shown_in(error))
    }

    async fn wait_for_port(&self, row: &ServiceSandbox, sandbox: &SandboxId, port: u16) -> Result<(), ServiceError> {
        let limit = self.config.app_start_timeout;
        let deadline = Instant::now() + limit;
        let mut wait = FIRST_WAIT;
        loop {
            match self.backend.is_listening(sandbox, port).await {
                Ok(true) => return Ok(()),
                Ok(false) if Instant::now() >= deadline => return Err(nothing_listens(port, limit)),
                Ok(false) => sleep(wait).await,
                Err(error) => return Err(self.explain(row, error).await.in_step(Step::Start)),
            }
            wait = (wait * 2).min(MAX_WAIT);
        }
    }
}

fn nothing_listens(port: u16, limit: Duration) -> ServiceError {
    let message = format!(
        "nothing listens on port {port} after {} s; check the port, or send start_command if the template starts no app",
        limit.as_secs()
    );
    ServiceError::StepFailed(Box::new(FailedStep::new(Step::Start, message).timed_out()))
}

/// What an app has written so far.
#[derive(Default)]
struct Written {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Written {
    /// Reads until the app ends.
    async fn follow(&mut self, mut app: Running) -> FailedStep {
        while let Some(event) = app.next().await {
            match event {
                StreamEvent::Started(_) => {}
                StreamEvent::Stdout(bytes) => keep_end(&mut self.stdout, &bytes),
                StreamEvent::Stderr(bytes) => keep_end(&mut self.stderr, &bytes),
                StreamEvent::Ended(end) => {
                    let message = format!("the app ended with {} before it listened", end.status);
                    return FailedStep::new(Step::Start, message).with_exit_code(end.exit_code);
                }
                StreamEvent::Failed(error) => return FailedStep::new(Step::Start, error.to_string()),
            }
        }
        FailedStep::new(Step::Start, "the app's output broke off")
    }

    fn shown_in(&self, error: ServiceError) -> ServiceError {
        match error {
            ServiceError::StepFailed(failed) => {
                ServiceError::StepFailed(Box::new(failed.with_streams(&self.stdout, &self.stderr)))
            }
            other => other,
        }
    }
}

fn keep_end(kept: &mut Vec<u8>, more: &[u8]) {
    kept.extend_from_slice(more);
    let surplus = kept.len().saturating_sub(KEPT_OUTPUT);
    kept.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_output_of_an_app_is_kept() {
        let mut kept = Vec::new();
        for _ in 0..3 {
            keep_end(&mut kept, &[b'x'; KEPT_OUTPUT / 2]);
        }
        keep_end(&mut kept, b"the end");
        assert!(kept.len() == KEPT_OUTPUT && kept.ends_with(b"the end"));
    }
}
