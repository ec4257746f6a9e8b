//! `get_workflow`: how far a workflow is.

use isopod_client::Client;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answered, Call, Effect, McpTool};
use crate::text::{cut, visible};
use crate::tool_error::ToolError;

/// Arguments of `get_workflow`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct GetWorkflowArgs {
    /// The id that start_workflow returned.
    run_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WorkflowAnswer {
    /// The run.
    run_id: String,
    /// Such as `running`, `completed` or `failed`.
    status: String,
    /// All of its state, as the server has it. Missing if that is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Value>,
    /// Whether the state is left out.
    truncated: bool,
}

impl McpTool for GetWorkflowArgs {
    const NAME: &'static str = "get_workflow";
    const TITLE: &'static str = "Get a workflow";
    const DESCRIPTION: &'static str = "Returns the state of a workflow that start_workflow started.";
    const EFFECT: Effect = Effect::Reads;
    type Answer = WorkflowAnswer;

    async fn run(self, call: Call) -> Result<Answered<WorkflowAnswer>, ToolError> {
        answer(&call.sandboxes.client(), self.run_id, call.max_output()).await
    }
}

pub(super) async fn answer(client: &Client, run_id: String, max: usize) -> Result<Answered<WorkflowAnswer>, ToolError> {
    let state = client.run_state(&run_id).await.map_err(|error| match error.is_not_found() {
        true => ToolError::new(format!("there is no run {run_id}")),
        false => error.into(),
    })?;
    let status = state["status"].as_str().unwrap_or("unknown").to_owned();
    let words = serde_json::to_string_pretty(&state).unwrap_or_default();
    let truncated = words.len() > max;
    let text = format!("Run {run_id}: {status}\n{}", visible(cut(&words, max)));
    Ok(Answered::text(text, WorkflowAnswer { run_id, status, state: (!truncated).then_some(state), truncated }))
}
