//! What `isopod key` can be told.

use clap::Subcommand;

use super::DatabaseArgs;
use super::server::ServerArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key and print it. It cannot be shown again.
    Create {
        /// Name of the key.
        #[arg(long, default_value = "made by isopod key create")]
        name: String,
        /// What the key allows; scopes other than team and admin work only for /api/v1.
        #[arg(long, value_enum, default_value_t = ScopeArg::Team)]
        scope: ScopeArg,
        /// Agent that the key is for, with --scope agent.
        #[arg(long, value_name = "AGENT_ID", required_if_eq("scope", "agent"))]
        agent: Option<String>,
        /// Let the key expire after this many days.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36500))]
        expires_days: Option<u32>,
        #[command(flatten)]
        common: KeyCommon,
    },
    /// List keys, without their secrets.
    List {
        #[command(flatten)]
        common: KeyCommon,
    },
    /// Create a replacement for a key and print it. The old key works until the overlap ends.
    Rotate {
        /// Id of the key, as shown by `isopod key list`.
        #[arg(value_name = "KEY_ID")]
        id: String,
        /// Hours during which both keys work.
        #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=8760))]
        overlap_hours: u32,
        #[command(flatten)]
        common: KeyCommon,
    },
    /// Revoke keys permanently.
    Revoke {
        /// Ids of the keys, as shown by `isopod key list`.
        #[arg(value_name = "KEY_ID", required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        common: KeyCommon,
    },
}

/// What a key is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ScopeArg {
    /// Everything in its team.
    Team,
    /// Resources of one agent.
    Agent,
    /// Read access only.
    ReadOnly,
    /// Everything in all teams.
    Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyCommon {
    /// Access the state directory of this machine directly, as root, without a server or key.
    #[arg(long)]
    pub(crate) local: bool,
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
