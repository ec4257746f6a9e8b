//! Executes code and commands of a run in its sandbox, and disposes of the sandbox in the end.

use std::time::Duration;

use async_trait::async_trait;
use isopod_store::{RunId, TeamId};
use serde_json::Value;

/// One piece of work for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutorCall {
    /// The node that wants it.
    pub(crate) node: String,
    pub(crate) work: ExecutorWork,
    pub(crate) timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecutorWork {
    Code { code: String, language: Option<String> },
    Command(String),
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecutorResult {
    pub(crate) success: bool,
    /// What was printed and made, as a tool call answers it.
    pub(crate) output: Value,
    pub(crate) error: Option<String>,
    pub(crate) files: Vec<String>,
}

/// What a disposal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disposed {
    /// A sandbox was there, and it is gone now.
    pub(crate) killed: bool,
}

/// The sandbox could not be used or not be disposed of.
#[derive(Debug, thiserror::Error)]
#[error("could not {doing}")]
pub(crate) struct ExecutorError {
    pub(crate) doing: &'static str,
    #[source]
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

/// One sandbox per run, made when it is first needed.
#[async_trait]
pub(crate) trait Executor: Send + Sync + 'static {
    /// Executes in the run's sandbox. When the future is dropped, the work is given up.
    async fn execute(&self, team: &TeamId, run: &RunId, call: ExecutorCall) -> Result<ExecutorResult, ExecutorError>;

    /// Removes the run's sandbox. Asked again it finds nothing and says so; an error means that it may still be there.
    async fn dispose(&self, team: &TeamId, run: &RunId) -> Result<Disposed, ExecutorError>;

    /// The runs that have a sandbox.
    async fn holding(&self) -> Result<Vec<(TeamId, RunId)>, ExecutorError>;
}
