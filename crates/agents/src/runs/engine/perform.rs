//! Executes a node, in a task of its own that does not touch the run's state.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use isopod_store::{NodeSpec, RunId, TeamId, Work};
use serde_json::Value;

use super::RunTask;
use crate::runs::agent::{AgentError, AgentReply, Delegation, Invocation};
use crate::runs::executor::{ExecutorCall, ExecutorResult, ExecutorWork};
use crate::runs::invocation::invocation;
use crate::runs::live_output::ToolLog;
use crate::runs::shared::Shared;

/// The outcome of one attempt at a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) success: bool,
    /// Whether the work was begun. Otherwise there is nothing to undo.
    pub(crate) is_begun: bool,
    pub(crate) output: Value,
    pub(crate) error: Option<String>,
    pub(crate) tokens: u64,
    pub(crate) tools: Vec<String>,
    pub(crate) tool_calls: Vec<Value>,
    pub(crate) signature: Option<String>,
    pub(crate) cached_content: Option<String>,
    pub(crate) files: Vec<String>,
    pub(crate) delegation: Option<Delegation>,
}

impl RunTask {
    /// Starts the nodes that were marked and recorded.
    pub(super) fn perform_started(&mut self) {
        for id in std::mem::take(&mut self.changes.started) {
            let Some(node) = self.nodes.get(&id) else { continue };
            let (spec, shared) = (node.spec.clone(), Arc::clone(&self.shared));
            let is_repeated = self.begun.contains(&id);
            let (team, run) = (self.row.team.clone(), self.row.id.clone());
            let invocation = matches!(spec.work(), Work::Agent { .. }).then(|| self.invocation_of(&spec));
            let log = self
                .tool_call_of(&id)
                .map(|(tool, arguments)| ToolLog::begin(Arc::clone(&self.output), Some(id.clone()), tool, &arguments));
            self.performing.spawn(async move {
                let work = AssertUnwindSafe(async {
                    if spec.checkpoint
                        && let Err(error) = shared.executor.checkpoint(&team, &run, &spec.id, is_repeated).await
                    {
                        return Outcome::failed(isopod_wire::error_chain(&error));
                    }
                    let outcome = perform(&shared, &team, &run, &spec, invocation, log).await;
                    Outcome { is_begun: true, ..outcome }
                });
                let outcome =
                    work.catch_unwind().await.unwrap_or_else(|_| Outcome::failed("internal error of the server"));
                (spec.id, outcome)
            });
        }
    }

    fn invocation_of(&self, spec: &NodeSpec) -> Invocation {
        invocation(&self.row, spec, |id| self.nodes.get(id), &self.graph)
    }
}

async fn perform(
    shared: &Shared,
    team: &TeamId,
    run: &RunId,
    spec: &NodeSpec,
    invocation: Option<Invocation>,
    log: Option<ToolLog>,
) -> Outcome {
    let timeout = spec.attempt_timeout();
    let work = match (spec.work(), invocation) {
        (Work::Agent { url }, Some(invocation)) => {
            let answer = tokio::time::timeout(timeout, shared.agents.invoke(url, &invocation)).await;
            return match answer.unwrap_or(Err(AgentError::Timeout(timeout))) {
                Ok(reply) => reply.into(),
                Err(error) => Outcome::failed(isopod_wire::error_chain(&error)),
            };
        }
        (Work::Code { code, language }, _) => {
            ExecutorWork::Code { code: code.to_owned(), language: language.map(str::to_owned) }
        }
        (Work::Command(command), _) => ExecutorWork::Command(command.to_owned()),
        (Work::Agent { .. }, None) => return Outcome::failed("the invocation of the agent is missing"),
    };
    let call = ExecutorCall { node: spec.id.clone(), work, timeout };
    let Some(mut log) = log else { return Outcome::failed("the log of the call is missing") };
    let executing = shared.executor.execute(team, run, call, &mut log);
    let outcome = match tokio::time::timeout(timeout + shared.overtime, executing).await {
        Ok(Ok(result)) => result.into(),
        Ok(Err(error)) => Outcome::failed(isopod_wire::error_chain(&error)),
        Err(_) => Outcome::failed(format!("the node took longer than {timeout:?}")),
    };
    log.end(outcome.success, &outcome.text());
    outcome
}

impl Outcome {
    /// What it says in one text.
    fn text(&self) -> String {
        let result = self.output.get("result").unwrap_or(&self.output);
        match (&self.error, result) {
            (Some(error), _) => error.clone(),
            (None, Value::String(text)) => text.clone(),
            (None, other) => other.to_string(),
        }
    }

    fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }
}

impl From<ExecutorResult> for Outcome {
    fn from(result: ExecutorResult) -> Self {
        let ExecutorResult { success, output, error, files } = result;
        Self { success, output, error, files, ..Self::default() }
    }
}

impl From<AgentReply> for Outcome {
    fn from(reply: AgentReply) -> Self {
        Self {
            success: reply.success,
            is_begun: true,
            tokens: reply.tokens(),
            tools: reply.tools(),
            tool_calls: reply.tool_calls().to_vec(),
            files: reply.files(),
            output: reply.output,
            error: reply.error,
            signature: reply.thought_signature,
            cached_content: reply.cached_content_id,
            delegation: reply.delegation,
        }
    }
}
