//! What `isopod key` can be told.

use clap::Subcommand;

use super::server::ServerArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it. It cannot be shown again.
    Create {
        /// What to call it.
        #[arg(long, default_value = "made by isopod key create")]
        name: String,
        #[command(flatten)]
        common: KeyCommon,
    },
    /// List keys, without the keys themselves.
    List {
        #[command(flatten)]
        common: KeyCommon,
    },
    /// End keys for good.
    Revoke {
        /// The keys' ids, as `isopod key list` shows them.
        #[arg(value_name = "KEY_ID", required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        common: KeyCommon,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyCommon {
    /// Without a server and a key: directly in the state directory of this machine, as root.
    #[arg(long)]
    pub(crate) local: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
