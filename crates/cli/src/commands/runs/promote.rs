//! `isopod runs promote`: keeps a file that a run has made for later runs.

use isopod_client::Client;

use super::super::remote::explain;
use super::field;
use crate::say::print_json_pretty;

pub(super) async fn run(client: &Client, run: &str, file: &str, owner: &str, json: bool) -> anyhow::Result<()> {
    let promoted = client.promote_artifact(run, file, owner).await.map_err(explain)?;
    if json {
        print_json_pretty(&promoted);
        return Ok(());
    }
    let shown = |name: &str| field(&promoted, name);
    say!("{} is in the library of {} until {}", shown("filename"), shown("client_id"), shown("expires_at"));
    Ok(())
}
