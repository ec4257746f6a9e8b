//! What `isopod node` can be told.

use std::time::Duration;

use clap::Subcommand;

use super::server::{ServerArgs, parse_seconds};

#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) command: NodeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the servers that share the database, and how many sandboxes each has. Needs an admin key.
    #[command(visible_alias = "list")]
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Create and resume no sandboxes from now on, and save those that are paused; running ones go on. Needs an admin key.
    Drain(DrainArgs),
    /// End a drain. Needs an admin key.
    Uncordon(UncordonArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// How long to wait until paused sandboxes are saved, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) deadline: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UncordonArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
