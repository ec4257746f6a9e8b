//! Executes in the session of a run: the one sandbox that its agents share.

use std::sync::Arc;

use async_trait::async_trait;
use isopod_store::{Owner, OwnerKind, RunId, Store, TeamId};
use serde_json::json;

use super::executor::{Disposed, Executor, ExecutorCall, ExecutorError, ExecutorResult, ExecutorWork};
use crate::sessions::{Action, CheckpointName, OutputSink, SessionError, Sessions, ToolCall, ToolResult};

/// Executes the nodes of a run in its session.
#[derive(Debug)]
pub(crate) struct SessionExecutor {
    sessions: Arc<Sessions>,
    store: Store,
}

impl SessionExecutor {
    pub(crate) fn new(sessions: Arc<Sessions>, store: Store) -> Self {
        Self { sessions, store }
    }
}

#[async_trait]
impl Executor for SessionExecutor {
    async fn execute(
        &self,
        team: &TeamId,
        run: &RunId,
        call: ExecutorCall,
        sink: &mut dyn OutputSink,
    ) -> Result<ExecutorResult, ExecutorError> {
        let owner = owner(run)?;
        let action = match call.work {
            ExecutorWork::Code { code, language } => Action::Code { code, language },
            ExecutorWork::Command(line) => Action::Command { line },
        };
        let call = ToolCall { action, files: Vec::new(), timeout: call.timeout, agent: Some(call.node) };
        let result = self.sessions.execute(team, &owner, call, sink).await.map_err(failed("use the run's sandbox"))?;
        Ok(as_result(result))
    }

    async fn checkpoint(&self, team: &TeamId, run: &RunId, node: &str, is_repeated: bool) -> Result<(), ExecutorError> {
        let (owner, name) = (owner(run)?, CheckpointName::Node(node.to_owned()));
        let undone = self.sessions.roll_back(team, &owner, name.clone()).await;
        if undone.map_err(failed("undo an earlier attempt"))? {
            return Ok(());
        }
        if is_repeated {
            let source = "somebody has removed the checkpoint that was taken before the first attempt".into();
            return Err(ExecutorError { doing: "undo an earlier attempt", source });
        }
        self.sessions
            .take_checkpoint(team, &owner, name)
            .await
            .map_err(failed("take a checkpoint of the run's sandbox"))
    }

    async fn dispose(&self, team: &TeamId, run: &RunId) -> Result<Disposed, ExecutorError> {
        match self.sessions.dispose(team, &owner(run)?).await {
            Ok(disposed) => Ok(Disposed { killed: !disposed.killed.is_empty() }),
            // A run of the same name on that server uses it, and this run never could.
            Err(SessionError::Elsewhere(_)) => Ok(Disposed { killed: false }),
            Err(error) => Err(failed("remove the run's sandbox")(error)),
        }
    }

    async fn holding(&self) -> Result<Vec<(TeamId, RunId)>, ExecutorError> {
        let rows = self.store.open_sessions().await.map_err(failed("list the sessions"))?;
        let of_runs = rows.iter().filter(|row| row.owner.kind() == OwnerKind::Run);
        Ok(of_runs.filter_map(|row| Some((row.team.clone(), row.owner.id().parse().ok()?))).collect())
    }
}

fn owner(run: &RunId) -> Result<Owner, ExecutorError> {
    Owner::run(run.as_str()).map_err(failed("name the run's session"))
}

fn failed<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl Fn(E) -> ExecutorError {
    move |error| ExecutorError { doing, source: error.into() }
}

fn as_result(result: ToolResult) -> ExecutorResult {
    let text = result.result.clone().or_else(|| result.logs.clone());
    ExecutorResult {
        success: result.success,
        output: json!({
            "result": text, "stdout": result.output.stdout, "stderr": result.output.stderr,
            "exit_code": result.output.exit_code, "sandbox_id": result.sandbox_id, "restarted": result.restarted,
        }),
        error: result.error,
        files: result.files_generated,
    }
}
