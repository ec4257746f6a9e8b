//! `isopod runs library`: the files that a team keeps for its runs.

use isopod_client::Client;
use serde_json::Value;

use super::super::remote::explain;
use super::super::show::print_table;
use super::field;
use crate::say::print_json_pretty;

pub(super) async fn run(client: &Client, owner: &str, json: bool) -> anyhow::Result<()> {
    let library = client.library(owner).await.map_err(explain)?;
    if json {
        print_json_pretty(&library);
        return Ok(());
    }
    let columns = ["filename", "size_bytes", "content_type", "origin", "run_id", "agent_id", "expires_at"];
    let row = |file: &Value| columns.iter().map(|name| field(file, name)).collect();
    let rows: Vec<Vec<String>> = library["files"].as_array().into_iter().flatten().map(row).collect();
    print_table(&["FILE", "BYTES", "TYPE", "CLIENT", "RUN", "NODE", "EXPIRES"], &rows);
    Ok(())
}
