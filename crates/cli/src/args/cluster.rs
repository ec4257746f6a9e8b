//! What `isopod cluster` can be told.

use clap::Subcommand;

use super::DatabaseArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Make a cluster of this one server: its authority, and this server's certificate.
    Init(ClusterDatabaseArgs),
    /// Print a token that lets one machine join with `isopod serve --join`.
    Token {
        /// How many hours the token can be used.
        #[arg(long, value_name = "HOURS", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=8760))]
        expires_hours: u32,
        #[command(flatten)]
        database: ClusterDatabaseArgs,
    },
    /// List tokens, without their secrets.
    Tokens {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        database: ClusterDatabaseArgs,
    },
    /// Revoke a token that was not used.
    Revoke {
        /// Its id, from `isopod cluster tokens`.
        #[arg(value_name = "TOKEN_ID")]
        id: String,
        #[command(flatten)]
        database: ClusterDatabaseArgs,
    },
    /// List the servers of the cluster: address, version, and when each certificate ends.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        database: ClusterDatabaseArgs,
    },
    /// Remove a server from the cluster. The others refuse it from then on.
    Remove {
        /// Its id, or its name if only one server has it.
        #[arg(value_name = "SERVER")]
        server: String,
        #[command(flatten)]
        database: ClusterDatabaseArgs,
    },
}

/// A member knows its database.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClusterDatabaseArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
}
