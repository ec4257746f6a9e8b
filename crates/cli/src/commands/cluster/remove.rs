//! `isopod cluster remove`: the other servers refuse one from now on.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use super::open;
use crate::args::ClusterDatabaseArgs;

pub(super) async fn remove(state_dir: &Path, server: &str, args: &ClusterDatabaseArgs) -> anyhow::Result<ExitCode> {
    let (_, store) = open(state_dir, args).await?;
    let nodes = store.list_cluster_nodes().await?;
    let found: Vec<_> =
        nodes.iter().filter(|node| !node.is_removed && (node.server == server || node.name == server)).collect();
    let [node] = found[..] else {
        match found.len() {
            0 => bail!("the cluster has no server {server:?}"),
            several => bail!("{several} servers are called {server:?}; give the id"),
        }
    };
    store.remove_cluster_node(&node.server).await?;
    store.close().await;
    say!("removed {} from the cluster; its sandboxes run on until its server is stopped", node.name);
    Ok(ExitCode::SUCCESS)
}
