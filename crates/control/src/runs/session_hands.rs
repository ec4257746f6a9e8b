//! The hands of a run on its session: the one sandbox that the run's agents share too.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::RunId;
use super::hands::{Disposed, Hands, HandsCall, HandsError, HandsResult, HandsWork};
use crate::sessions::{Action, Owner, OwnerKind, Sessions, ToolCall, ToolResult};
use crate::store::{Store, TeamId};

/// Nodes execute what they have to in their run's session.
#[derive(Debug)]
pub(crate) struct SessionHands {
    sessions: Arc<Sessions>,
    store: Store,
}

impl SessionHands {
    pub(crate) fn new(sessions: Arc<Sessions>, store: Store) -> Self {
        Self { sessions, store }
    }
}

#[async_trait]
impl Hands for SessionHands {
    async fn execute(&self, team: &TeamId, run: &RunId, call: HandsCall) -> Result<HandsResult, HandsError> {
        let owner = owner(run)?;
        let action = match call.work {
            HandsWork::Code { code, language } => Action::Code { code, language },
            HandsWork::Command(line) => Action::Command { line },
        };
        let call = ToolCall { action, files: Vec::new(), timeout: call.timeout, agent: Some(call.node) };
        let result = self.sessions.execute(team, &owner, call).await.map_err(failed("use the run's sandbox"))?;
        Ok(as_result(result))
    }

    async fn dispose(&self, team: &TeamId, run: &RunId) -> Result<Disposed, HandsError> {
        let disposed = self.sessions.dispose(team, &owner(run)?).await.map_err(failed("remove the run's sandbox"))?;
        Ok(Disposed { killed: disposed.killed })
    }

    async fn holding(&self) -> Result<Vec<(TeamId, RunId)>, HandsError> {
        let rows = self.store.open_sessions().await.map_err(failed("list the sessions"))?;
        let of_runs = rows.iter().filter(|row| row.owner.kind() == OwnerKind::Run);
        Ok(of_runs.filter_map(|row| Some((row.team.clone(), row.owner.id().parse().ok()?))).collect())
    }
}

fn owner(run: &RunId) -> Result<Owner, HandsError> {
    Owner::run(run.as_str()).map_err(failed("name the run's session"))
}

fn failed<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl Fn(E) -> HandsError {
    move |error| HandsError { doing, source: error.into() }
}

fn as_result(result: ToolResult) -> HandsResult {
    let text = result.result.clone().or_else(|| result.logs.clone());
    HandsResult {
        success: result.success,
        output: json!({
            "result": text, "stdout": result.output.stdout, "stderr": result.output.stderr,
            "exit_code": result.output.exit_code, "sandbox_id": result.sandbox_id, "restarted": result.restarted,
        }),
        error: result.error,
        files: result.files_generated,
    }
}
