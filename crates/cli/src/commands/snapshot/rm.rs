//! `isopod snapshot rm`: snapshots with all their tags.

use std::process::ExitCode;

use super::super::remote::{client, explain};
use super::missing;
use crate::args::SnapshotRmArgs;

pub(super) async fn run(args: SnapshotRmArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    for snapshot in &args.snapshots {
        if !client.remove_snapshot(snapshot).await.map_err(explain)? {
            return Err(missing(snapshot));
        }
        say!("{snapshot}");
    }
    Ok(ExitCode::SUCCESS)
}
