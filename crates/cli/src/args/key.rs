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
    /// Make a key and print it. It cannot be shown again.
    Create {
        /// What to call it.
        #[arg(long, default_value = "made by isopod key create")]
        name: String,
        /// What it is good for; all but team and admin are for /api/v1 only.
        #[arg(long, value_enum, default_value_t = ScopeArg::Team)]
        scope: ScopeArg,
        /// The agent that a key of scope agent is for.
        #[arg(long, value_name = "AGENT_ID", required_if_eq("scope", "agent"))]
        agent: Option<String>,
        /// End it after so many days.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36500))]
        expires_days: Option<u32>,
        #[command(flatten)]
        common: KeyCommon,
    },
    /// List keys, without the keys themselves.
    List {
        #[command(flatten)]
        common: KeyCommon,
    },
    /// Make a key like this one and print it. The old one counts on until the overlap is over.
    Rotate {
        /// The key's id, as `isopod key list` shows it.
        #[arg(value_name = "KEY_ID")]
        id: String,
        /// How long both count.
        #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=8760))]
        overlap_hours: u32,
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

/// What a key is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ScopeArg {
    /// Everything of its team.
    Team,
    /// What belongs to one agent.
    Agent,
    /// Looking, not changing.
    ReadOnly,
    /// Everything of all teams.
    Admin,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyCommon {
    /// Without a server and a key: directly in the state directory of this machine, as root.
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
