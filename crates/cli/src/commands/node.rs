//! `isopod node`: the servers that share a database.

use std::process::ExitCode;

use isopod_client::ApiError;
use isopod_client::sandbox::NodeInfo;

use super::remote;
use super::show::print_table;
use crate::args::{NodeArgs, NodeCommand};
use crate::failure::Hint;
use crate::say::print_json_pretty;

pub(super) async fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        NodeCommand::Ls { json, server } => {
            let nodes = remote::client(&server)?.nodes().await.map_err(explain)?;
            if json { print_json_pretty(&nodes) } else { show(&nodes) }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(nodes: &[NodeInfo]) {
    let rows: Vec<Vec<String>> = nodes.iter().map(row).collect();
    print_table(&["NAME", "STATUS", "SANDBOXES", "PAUSED", "VERSION", "LAST SEEN", "ID"], &rows);
}

fn row(node: &NodeInfo) -> Vec<String> {
    let mark = if node.is_answering { " (answering)" } else { "" };
    vec![
        format!("{}{mark}", node.name),
        node.status.clone(),
        node.sandbox_count.to_string(),
        node.paused_sandbox_count.to_string(),
        if node.version.is_empty() { "-".to_owned() } else { node.version.clone() },
        node.last_seen_at.clone(),
        node.id.clone(),
    ]
}

/// What only an admin may see is refused with the way to become one.
fn explain(error: ApiError) -> anyhow::Error {
    match &error {
        ApiError::Server { code: 403, .. } => Hint::new(
            error.to_string(),
            "set E2B_API_KEY to an admin key: sudo isopod key create --local --scope admin",
        ),
        _ => remote::explain(error),
    }
}
