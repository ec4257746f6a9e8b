//! What an agent is sent: its node, and what came before it in the run.

use isopod_store::{NodeRow, NodeSpec, RunRow, StoreError, Work};
use serde_json::{Map, Value};

use super::Runs;
use super::agent::Invocation;
use super::graph::{Graph, GraphNode};

/// How many nodes an agent is told of.
const MAX_VIEW: usize = 500;

impl Runs {
    /// What the agent of a node would be sent now. `None` if the run has no such agent.
    pub(crate) async fn invocation(&self, row: &RunRow, node: &str) -> Result<Option<Invocation>, StoreError> {
        let nodes = self.shared.store.run_nodes(&row.id).await?;
        let find = |id: &str| nodes.iter().find(|found| found.spec.id == id);
        let Some(found) = find(node).filter(|found| matches!(found.spec.work(), Work::Agent { .. })) else {
            return Ok(None);
        };
        let graph = nodes.iter().map(|node| GraphNode {
            id: node.spec.id.clone(),
            depends_on: node.spec.depends_on.clone(),
            state: node.state,
        });
        let graph = Graph::new(graph.collect()).map_err(|error| StoreError::Corrupt {
            what: "the graph of a run",
            value: format!("{}: {error}", row.id),
        })?;
        Ok(Some(invocation(row, &found.spec, find, &graph)))
    }
}

pub(super) fn invocation<'a>(
    row: &RunRow,
    spec: &NodeSpec,
    find: impl Fn(&str) -> Option<&'a NodeRow>,
    graph: &Graph,
) -> Invocation {
    let parents = || spec.depends_on.iter().filter_map(|id| Some((id, find(id)?.output.as_ref()?)));
    let field = |output: &Value, name: &str| output.get(name).and_then(Value::as_str).map(str::to_owned);
    let made = parents().flat_map(|(_, output)| output["files_generated"].as_array().into_iter().flatten());
    let made = made.filter_map(Value::as_str).map(str::to_owned);
    let input_data: Map<String, Value> = parents().map(|(id, output)| (id.clone(), output["output"].clone())).collect();
    Invocation {
        run_id: row.id.to_string(),
        agent_id: spec.id.clone(),
        model: spec.model_text().to_owned(),
        prompt: spec.prompt.clone(),
        user_directive: spec.user_directive.clone().unwrap_or_default(),
        input_data,
        parent_signature: parents().find_map(|(_, output)| field(output, "thought_signature")),
        cached_content_id: parents().find_map(|(_, output)| field(output, "cached_content_id")),
        thinking_level: (spec.model.as_deref() == Some("thinking")).then_some(5),
        file_paths: row.settings.attached_files.iter().cloned().chain(made).collect(),
        tools: spec.tools.clone(),
        allow_delegation: spec.allow_delegation,
        graph_view: graph_view(graph),
    }
}

/// The graph as text, for an agent that may change it.
fn graph_view(graph: &Graph) -> String {
    let line = |node: &GraphNode| format!("[{}] {} <- {}", node.state.text(), node.id, node.depends_on.join(", "));
    graph.nodes().iter().take(MAX_VIEW).map(line).collect::<Vec<_>>().join("\n")
}
