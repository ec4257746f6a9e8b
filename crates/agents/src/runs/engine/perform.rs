//! Executes a node, in a task of its own that does not touch the run's state.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use isopod_store::{NodeSpec, RunId, TeamId, Work};
use serde_json::{Map, Value};

use super::RunTask;
use crate::runs::agent::{AgentError, AgentReply, Delegation, Invocation};
use crate::runs::executor::{ExecutorCall, ExecutorResult, ExecutorWork};
use crate::runs::shared::Shared;

/// The outcome of one attempt at a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) success: bool,
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

/// The executor enforces the timeout itself. This is for the case that it does not.
const GRACE: Duration = Duration::from_secs(5);

impl RunTask {
    /// Starts the nodes that were marked and recorded.
    pub(super) fn perform_started(&mut self) {
        for id in std::mem::take(&mut self.changes.started) {
            let Some(node) = self.nodes.get(&id) else { continue };
            let (spec, shared) = (node.spec.clone(), Arc::clone(&self.shared));
            let (team, run) = (self.row.team.clone(), self.row.id.clone());
            let invocation = matches!(spec.work(), Work::Agent { .. }).then(|| self.invocation_of(&spec));
            self.performing.spawn(async move {
                let work = AssertUnwindSafe(perform(&shared, &team, &run, &spec, invocation));
                let outcome =
                    work.catch_unwind().await.unwrap_or_else(|_| Outcome::failed("internal error of the server"));
                (spec.id, outcome)
            });
        }
    }

    fn invocation_of(&self, spec: &NodeSpec) -> Invocation {
        let parents = || spec.depends_on.iter().filter_map(|id| Some((id, self.nodes.get(id)?.output.as_ref()?)));
        let field = |output: &Value, name: &str| output.get(name).and_then(Value::as_str).map(str::to_owned);
        let made = parents().flat_map(|(_, output)| output["files_generated"].as_array().into_iter().flatten());
        let made = made.filter_map(Value::as_str).map(str::to_owned);
        let input_data: Map<String, Value> =
            parents().map(|(id, output)| (id.clone(), output["output"].clone())).collect();
        Invocation {
            run_id: self.row.id.to_string(),
            agent_id: spec.id.clone(),
            model: spec.model_text().to_owned(),
            prompt: spec.prompt.clone(),
            user_directive: spec.user_directive.clone().unwrap_or_default(),
            input_data,
            parent_signature: parents().find_map(|(_, output)| field(output, "thought_signature")),
            cached_content_id: parents().find_map(|(_, output)| field(output, "cached_content_id")),
            thinking_level: (spec.model.as_deref() == Some("thinking")).then_some(5),
            file_paths: self.row.settings.attached_files.iter().cloned().chain(made).collect(),
            tools: spec.tools.clone(),
            allow_delegation: spec.allow_delegation,
            graph_view: self.graph_view(),
        }
    }

    /// The graph as text, for an agent that may change it.
    fn graph_view(&self) -> String {
        let line = |node: &crate::runs::graph::GraphNode| {
            format!("[{}] {} <- {}", node.state.text(), node.id, node.depends_on.join(", "))
        };
        self.graph.nodes().iter().take(500).map(line).collect::<Vec<_>>().join("\n")
    }
}

async fn perform(
    shared: &Shared,
    team: &TeamId,
    run: &RunId,
    spec: &NodeSpec,
    invocation: Option<Invocation>,
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
    match tokio::time::timeout(timeout + GRACE, shared.executor.execute(team, run, call)).await {
        Ok(Ok(result)) => result.into(),
        Ok(Err(error)) => Outcome::failed(isopod_wire::error_chain(&error)),
        Err(_) => Outcome::failed(format!("the node took longer than {timeout:?}")),
    }
}

impl Outcome {
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
