//! `isopod snapshot ls`: the team's snapshots.

use std::process::ExitCode;

use isopod_client::sandbox::{ListSnapshots, SnapshotInfo};

use super::super::remote::{client, explain};
use super::super::show::{mebibytes, moment, print_table};
use crate::args::SnapshotListArgs;
use crate::say::print_json_pretty;

pub(super) async fn run(args: SnapshotListArgs) -> anyhow::Result<ExitCode> {
    let which = ListSnapshots { sandbox: args.sandbox, name: args.name };
    let snapshots = client(&args.server)?.list_snapshots(&which).await.map_err(explain)?;
    if args.json {
        print_json_pretty(&snapshots);
    } else if args.quiet {
        snapshots.iter().for_each(|snapshot| say!("{}", snapshot.id));
    } else {
        print_table(&["ID", "SANDBOX", "KEEPS", "SIZE", "TAKEN"], &snapshots.iter().map(row).collect::<Vec<_>>());
    }
    Ok(ExitCode::SUCCESS)
}

fn row(snapshot: &SnapshotInfo) -> Vec<String> {
    vec![
        snapshot.id.clone(),
        snapshot.sandbox_id.clone().unwrap_or_else(unknown),
        snapshot.memory.map_or_else(unknown, |memory| keeps(memory).to_owned()),
        snapshot.bytes.map_or_else(unknown, mebibytes),
        snapshot.created_at.map_or_else(unknown, moment),
    ]
}

/// What a snapshot keeps, in a word.
pub(super) fn keeps(memory: bool) -> &'static str {
    if memory { "memory" } else { "files" }
}

/// Not every server says it.
fn unknown() -> String {
    "-".to_owned()
}
