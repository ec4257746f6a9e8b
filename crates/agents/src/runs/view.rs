//! The state of a run in the API, in the words of the agent kernel.

use isopod_store::clock::Timestamp;
use isopod_store::{NodeRow, NodeState, RunId, RunRow, RunService, ServiceCleanup, StoreError};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::Runs;

impl Runs {
    /// The whole state of a run.
    pub(crate) async fn state(&self, row: &RunRow) -> Result<Value, StoreError> {
        let nodes = self.shared.store.run_nodes(&row.id).await?;
        let attempts = self.shared.store.run_invocations(&row.id).await?;
        let mut state = json!(summary(row));
        let mut fields = json!({
            "active_agents": ids(&nodes, NodeState::Running),
            "completed_agents": ids(&nodes, NodeState::Done),
            "failed_agents": ids(&nodes, NodeState::Failed),
            "waiting_agents": ids(&nodes, NodeState::Waiting),
            "pending_agents": ids(&nodes, NodeState::Pending),
            "invocations": attempts.into_iter().map(|attempt| attempt.body).collect::<Vec<_>>(),
            "nodes": nodes.iter().map(shown_node).collect::<Vec<_>>(),
        });
        self.add_cleanup(&row.id, &mut fields).await?;
        if let (Some(state), Value::Object(fields)) = (state.as_object_mut(), fields) {
            state.extend(fields);
        }
        Ok(state)
    }

    /// Whether everything is cleaned up, and by which agent services. The URL of the configured one is the operator's.
    async fn add_cleanup(&self, id: &RunId, state: &mut Value) -> Result<(), StoreError> {
        let services = self.shared.store.run_services(id).await?;
        let has_failed = services.iter().any(|service| service.cleanup == ServiceCleanup::Failed);
        let is_done = self.shared.store.cleanup_done(id).await?;
        state["cleaned_up"] = json!(is_done.map(|is_done| is_done && !has_failed));
        state["cleanup_failed"] = json!(is_done.map(|_| has_failed));
        let shown = |service: &RunService| {
            json!({ "url": service.service.url(), "cleanup": service.cleanup.text(), "attempts": service.attempts,
                "error": service.error })
        };
        state["agent_services"] = services.iter().map(shown).collect();
        Ok(())
    }

    /// The graph of a run.
    pub(crate) async fn topology(&self, id: &RunId) -> Result<Value, StoreError> {
        let nodes = self.shared.store.run_nodes(id).await?;
        let edge = |node: &NodeRow| {
            let to = node.spec.id.clone();
            node.spec.depends_on.iter().map(move |from| json!({ "from": from, "to": to })).collect::<Vec<_>>()
        };
        let names: Vec<&str> = nodes.iter().map(|node| node.spec.id.as_str()).collect();
        Ok(json!({ "nodes": names, "edges": nodes.iter().flat_map(edge).collect::<Vec<_>>() }))
    }

    /// The output of a node, if it is done.
    pub(crate) async fn node_output(&self, id: &RunId, node: &str) -> Result<Option<Value>, StoreError> {
        let nodes = self.shared.store.run_nodes(id).await?;
        Ok(nodes.into_iter().find(|found| found.spec.id == node).and_then(|found| found.output))
    }

    /// The thought signatures of agents, by their ids.
    pub(crate) async fn signatures(&self, id: &RunId) -> Result<Value, StoreError> {
        let nodes = self.shared.store.run_nodes(id).await?;
        let signature = |node: &NodeRow| {
            let signature = node.output.as_ref()?.get("thought_signature")?.as_str()?;
            Some((node.spec.id.clone(), json!(signature)))
        };
        Ok(Value::Object(nodes.iter().filter_map(signature).collect::<Map<_, _>>()))
    }
}

/// A run in a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Run)]
pub(crate) struct RunSummary {
    run_id: String,
    workflow_id: String,
    name: String,
    client_id: String,
    status: &'static str,
    reason: Option<String>,
    error: Option<String>,
    /// Why nothing starts at the moment.
    paused: Option<String>,
    total_tokens_used: u64,
    start_time: Timestamp,
    end_time: Option<Timestamp>,
    last_event_id: i64,
}

pub(crate) fn summary(row: &RunRow) -> RunSummary {
    RunSummary {
        run_id: row.id.as_str().to_owned(),
        workflow_id: row.workflow.clone(),
        name: row.name.clone(),
        client_id: row.client.clone(),
        status: row.status.text(),
        reason: row.reason.clone(),
        error: row.error.clone(),
        paused: row.paused.clone(),
        total_tokens_used: row.tokens_used,
        start_time: row.created_at,
        end_time: row.ended_at,
        last_event_id: row.last_seq,
    }
}

fn ids(nodes: &[NodeRow], state: NodeState) -> Vec<&str> {
    nodes.iter().filter(|node| node.state == state).map(|node| node.spec.id.as_str()).collect()
}

fn shown_node(node: &NodeRow) -> Value {
    json!({
        "id": node.spec.id,
        "status": node.state.text(),
        "depends_on": node.spec.depends_on,
        "attempts": node.attempts,
        "output": node.output.as_ref().map(|output| &output["output"]),
        "files_generated": node.output.as_ref().map(|output| &output["files_generated"]),
        "error": node.error,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
    })
}
