//! `isopod snapshot inspect`: everything about one snapshot.

use std::process::ExitCode;

use isopod_client::sandbox::{ListSnapshots, SnapshotInfo};

use super::super::remote::{client, explain};
use super::super::show::{mebibytes, moment, printable};
use super::ls::keeps;
use super::missing;
use crate::args::SnapshotInspectArgs;
use crate::say::print_json_pretty;

pub(super) async fn run(args: SnapshotInspectArgs) -> anyhow::Result<ExitCode> {
    let which = ListSnapshots { name: Some(args.snapshot.clone()), ..ListSnapshots::default() };
    let found = client(&args.server)?.list_snapshots(&which).await.map_err(explain)?;
    let snapshot = found.first().ok_or_else(|| missing(&args.snapshot))?;
    if args.json {
        print_json_pretty(snapshot);
    } else {
        for (what, value) in rows(snapshot) {
            say!("{what:<12} {}", printable(&value));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(snapshot: &SnapshotInfo) -> Vec<(&'static str, String)> {
    let mut rows = vec![("id", snapshot.id.clone()), ("names", snapshot.names.join(" "))];
    rows.extend(snapshot.sandbox_id.clone().map(|sandbox| ("sandbox", sandbox)));
    rows.extend(snapshot.memory.map(|memory| ("keeps", keeps(memory).to_owned())));
    rows.extend(snapshot.bytes.map(|bytes| ("size", mebibytes(bytes))));
    let memory = snapshot.memory_bytes.filter(|_| snapshot.memory == Some(true));
    rows.extend(memory.map(|bytes| ("memory", mebibytes(bytes))));
    rows.extend(snapshot.created_at.map(|at| ("taken", moment(at))));
    rows.extend(snapshot.build_id.clone().map(|build| ("build", build)));
    rows
}
