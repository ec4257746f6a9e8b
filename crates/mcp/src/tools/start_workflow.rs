//! `start_workflow`: a graph of steps on the server, followed to its end.

use std::time::Duration;

use isopod_client::sandbox::RunEvent;
use isopod_client::{ApiError, Client};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::get_workflow::{WorkflowAnswer, answer};
use super::{Answered, Call, Effect, McpTool};
use crate::reporter::{Reporter, Stream};
use crate::tool_error::ToolError;

/// A server that restarts is back after a moment, and so is the run.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);
const RECONNECTS: u32 = 60;

/// Arguments of `start_workflow`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct StartWorkflowArgs {
    /// The workflow in YAML or JSON.
    workflow: String,
    /// How long to wait for its end, in seconds. After that, it goes on, and get_workflow shows it. 0 returns at once.
    /// Default: 300.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86400))]
    wait_seconds: Option<u32>,
}

impl McpTool for StartWorkflowArgs {
    const NAME: &'static str = "start_workflow";
    const TITLE: &'static str = "Start a workflow";
    const DESCRIPTION: &'static str = "Starts a workflow of Isopod on the server and waits for its end. Cancelling the call \
        stops the workflow.";
    const EFFECT: Effect = Effect::DestroysInOpenWorld;
    type Answer = WorkflowAnswer;

    async fn run(self, call: Call) -> Result<Answered<WorkflowAnswer>, ToolError> {
        let client = call.sandboxes.client();
        let run = start(&client, &self.workflow).await?;
        let mut stopped = StopOnCancel { call: call.clone(), run: Some(run.clone()) };
        let until = Instant::now() + Duration::from_secs(self.wait_seconds.unwrap_or(300).into());
        let reporter = call.audience.reporter();
        let followed = tokio::time::timeout_at(until, follow(&client, &run, &reporter)).await;
        reporter.finish().await;
        stopped.run = None;
        if let Ok(Err(error)) = followed {
            return Err(ToolError::from(error).hint(format!("the run is {run}; get_workflow shows it")));
        }
        answer(&client, run, call.max_output()).await
    }
}

async fn start(client: &Client, workflow: &str) -> Result<String, ToolError> {
    client.start_run(workflow).await.map_err(|error| match error {
        ApiError::Server { code: 400, message, .. } => {
            ToolError::new(message).hint("a workflow has a name and nodes; docs/workflows.md of Isopod describes it")
        }
        other => other.into(),
    })
}

/// Reports every event once, also across restarts of the server.
async fn follow(client: &Client, run: &str, reporter: &Reporter) -> Result<(), ApiError> {
    let (mut after, mut failures) = (0, 0);
    loop {
        match follow_once(client, run, &mut after, reporter).await {
            Ok(true) => return Ok(()),
            Ok(false) => failures = 0,
            Err(ApiError::Transport(_) | ApiError::Unavailable { .. }) if failures < RECONNECTS => failures += 1,
            Err(error) => return Err(error),
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// True when the run has ended.
async fn follow_once(client: &Client, run: &str, after: &mut i64, reporter: &Reporter) -> Result<bool, ApiError> {
    let mut events = client.run_events(run, *after).await?;
    while let Some(event) = events.next().await? {
        *after = event.id;
        reporter.wrote(Stream::Stdout, line(&event).as_bytes());
        if event.event_type == "RunEnded" {
            return Ok(true);
        }
    }
    Ok(false)
}

fn line(event: &RunEvent) -> String {
    format!("{} {}\n", event.event_type, event.agent_id.as_deref().unwrap_or_default())
}

/// Nobody would know the run's id.
struct StopOnCancel {
    call: Call,
    run: Option<String>,
}

impl Drop for StopOnCancel {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        let client = self.call.sandboxes.client();
        self.call.sandboxes.tasks.spawn(async move {
            if let Err(error) = client.stop_run(&run).await {
                tracing::debug!(run, %error, "could not stop a run whose call was cancelled");
            }
        });
    }
}
