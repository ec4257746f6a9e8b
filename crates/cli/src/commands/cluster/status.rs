//! `isopod cluster status`: the servers of the cluster.

use std::path::Path;
use std::process::ExitCode;

use isopod_store::ClusterNode;
use serde_json::json;

use super::open;
use crate::args::ClusterDatabaseArgs;
use crate::commands::show::print_table;
use crate::say::print_json_pretty;

pub(super) async fn status(state_dir: &Path, json: bool, args: &ClusterDatabaseArgs) -> anyhow::Result<ExitCode> {
    let (identity, store) = open(state_dir, args).await?;
    let nodes = store.list_cluster_nodes().await?;
    store.close().await;
    if json {
        print_json_pretty(&nodes.iter().map(shown).collect::<Vec<_>>());
        return Ok(ExitCode::SUCCESS);
    }
    let own = identity.server()?;
    let rows: Vec<Vec<String>> = nodes.iter().map(|node| row(node, own.as_str())).collect();
    print_table(&["NAME", "STATUS", "ADDRESS", "VERSION", "CERTIFICATE UNTIL", "ID"], &rows);
    Ok(ExitCode::SUCCESS)
}

fn shown(node: &ClusterNode) -> serde_json::Value {
    json!({
        "id": node.server,
        "name": node.name,
        "status": state(node),
        "address": node.address,
        "version": node.version,
        "certificate_until": node.certificate_until.to_rfc3339(),
    })
}

fn row(node: &ClusterNode, own: &str) -> Vec<String> {
    let name = if node.server == own { format!("{} (this one)", node.name) } else { node.name.clone() };
    let until = node.certificate_until.to_rfc3339();
    vec![name, state(node).to_owned(), node.address.clone(), node.version.clone(), until, node.server.clone()]
}

fn state(node: &ClusterNode) -> &'static str {
    match node {
        ClusterNode { is_removed: true, .. } => "removed",
        ClusterNode { is_reachable: true, .. } => "ready",
        _ => "unreachable",
    }
}
