//! Which database, for the verbs that open it.

use crate::env_names;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// PostgreSQL database for records, postgres://USER:PASSWORD@HOST/NAME [default: a file in the state directory].
    #[arg(long, env = env_names::DATABASE_URL, hide_env_values = true, value_name = "URL")]
    pub(crate) database: Option<String>,
}
