//! Executes code and commands of a run in its sandbox, and disposes of the sandbox in the end.

use std::time::Duration;

use async_trait::async_trait;
use isopod_store::{RunId, TeamId};
use serde_json::Value;

use crate::sessions::OutputSink;

/// Work for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutorCall {
    /// The node that requests it.
    pub(crate) node: String,
    pub(crate) work: ExecutorWork,
    pub(crate) timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecutorWork {
    Code { code: String, language: Option<String> },
    Command(String),
}

/// The result.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecutorResult {
    pub(crate) success: bool,
    /// The output and artifacts, in the format of a tool call.
    pub(crate) output: Value,
    pub(crate) error: Option<String>,
    pub(crate) files: Vec<String>,
}

/// The result of a disposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disposed {
    /// A sandbox existed, and it is now gone.
    pub(crate) killed: bool,
}

/// The sandbox could not be used or disposed of.
#[derive(Debug, thiserror::Error)]
#[error("could not {doing}")]
pub(crate) struct ExecutorError {
    pub(crate) doing: &'static str,
    #[source]
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

/// Provides one sandbox per run, created on first use.
#[async_trait]
pub(crate) trait Executor: Send + Sync + 'static {
    /// Executes in the run's sandbox, and passes on what is written there meanwhile. Dropping the future aborts the work.
    async fn execute(
        &self,
        team: &TeamId,
        run: &RunId,
        call: ExecutorCall,
        sink: &mut dyn OutputSink,
    ) -> Result<ExecutorResult, ExecutorError>;

    /// Keeps what the run's sandbox has and does, or puts it back to what was kept before an earlier attempt at this node. If the
    /// attempt is repeated, there must be something to put it back to.
    async fn checkpoint(&self, team: &TeamId, run: &RunId, node: &str, is_repeated: bool) -> Result<(), ExecutorError>;

    /// Removes the run's sandbox and its checkpoints. Idempotent. An error means that the sandbox may still exist.
    async fn dispose(&self, team: &TeamId, run: &RunId) -> Result<Disposed, ExecutorError>;

    /// The runs that have a sandbox.
    async fn holding(&self) -> Result<Vec<(TeamId, RunId)>, ExecutorError>;
}
