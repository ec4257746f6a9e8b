//! What `isopod quota` can be told.

use clap::Subcommand;

use super::server::ServerArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    pub(crate) command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// List the limits of all teams and what they use. Needs an admin key.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        common: QuotaCommon,
    },
    /// Show the limits of a team and what it uses.
    Show {
        /// Id of the team; needs an admin key [default: the team of your key].
        #[arg(value_name = "TEAM_ID")]
        team: Option<String>,
        #[command(flatten)]
        common: QuotaCommon,
    },
    /// Give a team a tier or limits of its own. What you do not name stays. Needs an admin key.
    Set {
        /// Id of the team.
        #[arg(value_name = "TEAM_ID")]
        team: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        common: QuotaCommon,
    },
    /// Take a team's tier and own limits away. Needs an admin key.
    Reset {
        /// Id of the team.
        #[arg(value_name = "TEAM_ID")]
        team: String,
        #[command(flatten)]
        common: QuotaCommon,
    },
    /// List the tiers of the server's settings. Needs an admin key.
    Tiers {
        #[command(flatten)]
        common: QuotaCommon,
    },
}

/// At least one of them is needed.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct LimitArgs {
    /// Tier of the server's settings.
    #[arg(long, value_name = "NAME")]
    pub(crate) tier: Option<String>,
    /// Sandboxes at the same time; 0 allows none.
    #[arg(long, value_name = "COUNT")]
    pub(crate) concurrent: Option<u32>,
    /// Creates per hour.
    #[arg(long, value_name = "COUNT")]
    pub(crate) per_hour: Option<u32>,
    /// CPU time per day.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) cpu_seconds_per_day: Option<u32>,
    /// Memory of all running sandboxes.
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mb: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct QuotaCommon {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
