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
    /// Show the last lines.
    Ls {
        /// How many.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Print all lines as JSON, oldest first.
    Export,
    /// Compute the chain of hashes again and say whether it holds.
    Verify {
        /// A hash that an earlier verify printed: it must still be in the chain.
        #[arg(long, value_name = "HASH")]
        contains: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
