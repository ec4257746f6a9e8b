//! What `isopod snapshot`, `fork` and `rollback` can be told.

use std::time::Duration;

use clap::Subcommand;
use isopod_client::SandboxId;

use super::server::{ServerArgs, parse_seconds};

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a running sandbox, which goes on.
    Create(SnapshotCreateArgs),
    /// List snapshots.
    #[command(visible_alias = "list")]
    Ls(SnapshotListArgs),
    /// Delete snapshots; sandboxes that were created from them keep running.
    #[command(visible_alias = "delete")]
    Rm(SnapshotRmArgs),
    /// Show details of a snapshot.
    Inspect(SnapshotInspectArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotCreateArgs {
    /// Id of the sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Name of the snapshot, as NAME or NAME:TAG; an earlier one of this name is replaced.
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Keep only the files, not the processes and their memory.
    #[arg(long)]
    pub(crate) filesystem_only: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotListArgs {
    /// List only snapshots of this sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: Option<SandboxId>,
    /// List only the snapshot with this name.
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Print only ids.
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotRmArgs {
    /// Ids or names of the snapshots; each goes with all its tags.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) snapshots: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotInspectArgs {
    /// Id or name of the snapshot.
    pub(crate) snapshot: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// Id of the sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Number of copies.
    #[arg(short = 'n', long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub(crate) count: u32,
    /// Lifetime of each copy in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RollbackArgs {
    /// Id of the sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Id or name of a snapshot of this sandbox.
    pub(crate) snapshot: String,
    /// Use only the snapshot's files, not the processes and their memory.
    #[arg(long)]
    pub(crate) filesystem_only: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
