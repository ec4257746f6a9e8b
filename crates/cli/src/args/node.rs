//! What `isopod node` can be told.

use clap::Subcommand;

use super::server::ServerArgs;

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
}
