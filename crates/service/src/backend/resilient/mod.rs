//! Makes any backend resilient: each attempt has a deadline and passes the breaker, and calls are retried if that is
//! safe.
//!
//! A call is retried if repeating it does no harm. A command is retried only if it was certainly not started. There are
//! three attempts, 1 to 10 s apart, and never sooner than the backend requested.

mod breaker;
mod create;
mod metrics;
#[cfg(test)]
mod tests;
mod tries;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use isopod_guest_client::Reservation;
use isopod_guest_client::interpreter::{Executed, RunCode};
use isopod_store::TeamId;
use isopod_wire::SandboxId;

use super::{Backend, BackendError, BackendSandbox, Command, CommandStream, CreateSpec, FileBody, FileRead};
use breaker::Breaker;
pub use breaker::{BreakerConfig, BreakerState};
pub use metrics::{BackendMetrics, Verb};
use tries::{Repeat, Tries};

/// Deadlines and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResilienceConfig {
    /// How often a call is sent at most.
    pub tries: u32,
    /// The shortest wait between two attempts. It doubles with each attempt.
    pub first_wait: Duration,
    /// The longest wait that we choose ourselves.
    pub max_wait: Duration,
    /// The longest wait that a backend may request. Beyond it, the caller gets the error.
    pub max_retry_after: Duration,
    /// The limit on one attempt of a create.
    pub create_timeout: Duration,
    /// The limit on one attempt of any other call, until it replies.
    pub call_timeout: Duration,
    /// When to stop using the backend.
    pub breaker: BreakerConfig,
}

impl Default for ResilienceConfig {
    fn default() -> Self {
        Self {
            tries: 3,
            first_wait: Duration::from_secs(1),
            max_wait: Duration::from_secs(10),
            max_retry_after: Duration::from_secs(30),
            create_timeout: Duration::from_secs(60),
            call_timeout: Duration::from_secs(30),
            breaker: BreakerConfig::default(),
        }
    }
}

/// A backend with retries, deadlines and a breaker around it.
#[derive(Debug)]
pub struct Resilient {
    inner: Arc<dyn Backend>,
    config: ResilienceConfig,
    breaker: Breaker,
    metrics: Arc<BackendMetrics>,
}

impl Resilient {
    /// Wraps this backend.
    pub fn new(inner: Arc<dyn Backend>, config: ResilienceConfig) -> Self {
        let metrics = Arc::new(BackendMetrics::new(inner.name()));
        Self { breaker: Breaker::new(config.breaker, Arc::clone(&metrics)), inner, config, metrics }
    }

    /// Whether the backend is used.
    pub fn breaker_state(&self) -> BreakerState {
        self.breaker.state()
    }

    /// The counters.
    pub fn metrics(&self) -> &BackendMetrics {
        &self.metrics
    }

    fn tries(&self, verb: Verb, repeat: Repeat) -> Tries<'_> {
        Tries::new(self, verb, repeat)
    }

    /// Retries a call until it succeeds or a retry makes no sense.
    async fn call<T, F: Future<Output = Result<T, BackendError>>>(
        &self,
        verb: Verb,
        repeat: Repeat,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, BackendError> {
        let mut tries = self.tries(verb, repeat);
        loop {
            match tries.attempt(attempt()).await {
                Ok(done) => return Ok(done),
                Err(error) => tries.wait_or_fail(error).await?,
            }
        }
    }
}

#[async_trait]
impl Backend for Resilient {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        self.create_once(spec).await
    }

    /// Without another try: the backend has waited as long as the caller does.
    async fn wait_for_template(&self, team: &TeamId, template: &str) -> Result<(), BackendError> {
        self.inner.wait_for_template(team, template).await
    }

    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError> {
        self.call(Verb::Status, Repeat::Always, || self.inner.status(id)).await
    }

    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError> {
        self.call(Verb::List, Repeat::Always, || self.inner.list(metadata)).await
    }

    async fn start(&self, id: &SandboxId, command: Command) -> Result<CommandStream, BackendError> {
        self.call(Verb::Execute, Repeat::IfNotDone, || self.inner.start(id, command.clone())).await
    }

    async fn run_code(
        &self,
        id: &SandboxId,
        code: RunCode,
        memory: &mut Reservation,
    ) -> Result<Executed, BackendError> {
        self.tries(Verb::RunCode, Repeat::Never).attempt(self.inner.run_code(id, code, memory)).await
    }

    async fn is_listening(&self, id: &SandboxId, port: u16) -> Result<bool, BackendError> {
        self.call(Verb::Execute, Repeat::Always, || self.inner.is_listening(id, port)).await
    }

    async fn host(&self, id: &SandboxId, port: u16) -> Result<Option<String>, BackendError> {
        self.call(Verb::Host, Repeat::Always, || self.inner.host(id, port)).await
    }

    async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        user: Option<&str>,
        contents: FileBody,
    ) -> Result<(), BackendError> {
        match contents {
            FileBody::Bytes(bytes) => {
                let write = || self.inner.write_file(id, path, user, FileBody::Bytes(bytes.clone()));
                self.call(Verb::WriteFile, Repeat::Always, write).await
            }
            // What was read from the stream is gone.
            stream @ FileBody::Stream(_) => {
                self.tries(Verb::WriteFile, Repeat::Never).attempt(self.inner.write_file(id, path, user, stream)).await
            }
        }
    }

    async fn read_file(&self, id: &SandboxId, path: &str, user: Option<&str>) -> Result<FileRead, BackendError> {
        self.call(Verb::ReadFile, Repeat::Always, || self.inner.read_file(id, path, user)).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.call(Verb::Pause, Repeat::Always, || self.inner.pause(id)).await
    }

    async fn resume(&self, id: &SandboxId, timeout: Duration) -> Result<BackendSandbox, BackendError> {
        self.call(Verb::Resume, Repeat::Always, || self.inner.resume(id, timeout)).await
    }

    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), BackendError> {
        self.call(Verb::SetTimeout, Repeat::Always, || self.inner.set_timeout(id, timeout)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError> {
        self.call(Verb::Destroy, Repeat::Always, || self.inner.destroy(id)).await
    }
}
