//! `isopod node ls`: the servers that share the database.

use std::process::ExitCode;

use isopod_client::sandbox::NodeInfo;

use super::explain;
use crate::args::ServerArgs;
use crate::commands::remote;
use crate::commands::show::print_table;
use crate::say::print_json_pretty;

pub(super) async fn ls(json: bool, server: &ServerArgs) -> anyhow::Result<ExitCode> {
    let nodes = remote::client(server)?.nodes().await.map_err(explain)?;
    if json {
        print_json_pretty(&nodes)
    } else {
        show(&nodes)
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
