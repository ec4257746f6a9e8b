//! Checks a workflow before anything of it is started.

use std::path::{Component, Path};

use isopod_outbound::Target;
use isopod_store::{NodeSpec, NodeState};

use super::Workflow;
use crate::runs::graph::{Graph, GraphError, GraphNode};

const MAX_RETRIES: u32 = 100;
const MAX_TIMEOUT: f64 = 7.0 * 24.0 * 3600.0;
const MAX_ATTACHED: usize = 1000;

/// Why a workflow cannot be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkflowError {
    #[error("cannot parse the workflow: {0}")]
    Unreadable(String),
    #[error("the workflow has no nodes")]
    NoNodes,
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(
        "{0:?} is not an id of a node: it needs 1 to 128 letters, digits, -, _ and ., and must start with a letter or digit"
    )]
    NodeId(String),
    #[error("node {node:?}: {why}")]
    Node { node: String, why: String },
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("{0:?} is not the name of an attached file")]
    Attached(String),
    #[error("a workflow can have at most {MAX_ATTACHED} attached files")]
    TooManyAttached,
}

pub(super) fn workflow(workflow: &Workflow) -> Result<(), WorkflowError> {
    if workflow.nodes.is_empty() {
        return Err(WorkflowError::NoNodes);
    }
    Graph::new(workflow.nodes.iter().map(as_graph_node).collect())?;
    workflow.nodes.iter().try_for_each(node)?;
    let settings = &workflow.settings;
    for (name, value) in [
        ("timeout_ms", settings.timeout_ms),
        ("approval_timeout_ms", settings.approval_timeout_ms),
        ("max_token_budget", settings.max_token_budget),
    ] {
        if value == Some(0) {
            return Err(WorkflowError::Zero(name));
        }
    }
    if settings.attached_files.len() > MAX_ATTACHED {
        return Err(WorkflowError::TooManyAttached);
    }
    match settings.attached_files.iter().find(|name| !is_inside(name)) {
        Some(name) => Err(WorkflowError::Attached(name.clone())),
        None => Ok(()),
    }
}

/// Checks a single node. Also for nodes that an agent adds later.
pub(in crate::runs) fn node(node: &NodeSpec) -> Result<(), WorkflowError> {
    if !is_node_id(&node.id) {
        return Err(WorkflowError::NodeId(node.id.chars().take(200).collect()));
    }
    let refuse = |why: String| Err(WorkflowError::Node { node: node.id.clone(), why });
    let kinds = [&node.code, &node.command, &node.agent].into_iter().flatten().count();
    if kinds > 1 {
        return refuse("only one of code, command and agent can be given".to_owned());
    }
    if node.language.is_some() && node.code.is_none() {
        return refuse("language is only allowed with code".to_owned());
    }
    if let Some(Err(error)) = node.agent.as_deref().map(Target::parse) {
        return refuse(error.to_string());
    }
    if node.timeout.is_some_and(|timeout| !(timeout > 0.0 && timeout <= MAX_TIMEOUT)) {
        return refuse("timeout must be a positive number of seconds, up to a week".to_owned());
    }
    if node.retries > MAX_RETRIES {
        return refuse(format!("retries must be at most {MAX_RETRIES}"));
    }
    Ok(())
}

pub(in crate::runs) fn as_graph_node(node: &NodeSpec) -> GraphNode {
    GraphNode { id: node.id.clone(), depends_on: node.depends_on.clone(), state: NodeState::Pending }
}

fn is_node_id(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=128).contains(&text.len()) && text.bytes().all(is_allowed) && text.as_bytes()[0].is_ascii_alphanumeric()
}

/// Whether it is a relative path that stays below its directory.
fn is_inside(name: &str) -> bool {
    let parts = || Path::new(name).components();
    !name.is_empty() && !name.contains('\0') && parts().all(|part| matches!(part, Component::Normal(_)))
}
