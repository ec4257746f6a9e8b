//! What `isopod audit` can be told.

use clap::Subcommand;

use super::DatabaseArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Show the latest entries.
    Ls {
        /// Maximum number of entries to show.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// Print one JSON object per entry.
        #[arg(long)]
        json: bool,
    },
    /// Print all entries as JSON, oldest first.
    Export,
    /// Recompute the hash chain and check that it is unbroken.
    Verify {
        /// Hash printed by an earlier verify, which must still be in the chain.
        #[arg(long, value_name = "HASH")]
        contains: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
