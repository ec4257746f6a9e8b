//! `isopod snapshot create`: keeps a running sandbox as it is now.

use std::process::ExitCode;

use isopod_client::sandbox::NewSnapshot;

use super::super::remote::{client, explain};
use crate::args::SnapshotCreateArgs;
use crate::say::print_json;

pub(super) async fn run(args: SnapshotCreateArgs) -> anyhow::Result<ExitCode> {
    let new = NewSnapshot { name: args.name, files_only: args.filesystem_only };
    let taken = client(&args.server)?.snapshot(&args.sandbox, &new).await.map_err(explain)?;
    match args.json {
        true => print_json(&taken),
        false => say!("{}", taken.id),
    }
    Ok(ExitCode::SUCCESS)
}
