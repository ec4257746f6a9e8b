//! `isopod snapshot`: one file per verb.

mod create;
mod inspect;
mod ls;
mod rm;

use std::process::ExitCode;

use crate::args::{SnapshotArgs, SnapshotCommand};

pub(super) async fn run(args: SnapshotArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        SnapshotCommand::Create(args) => create::run(args).await,
        SnapshotCommand::Ls(args) => ls::run(args).await,
        SnapshotCommand::Rm(args) => rm::run(args).await,
        SnapshotCommand::Inspect(args) => inspect::run(args).await,
    }
}

/// For a snapshot that does not exist.
fn missing(snapshot: &str) -> anyhow::Error {
    crate::failure::Hint::new(
        format!("there is no snapshot {snapshot:?} of yours"),
        "isopod snapshot ls lists those that there are",
    )
}
