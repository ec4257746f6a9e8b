//! What `isopod env` can be told.

use std::ffi::OsString;
use std::path::PathBuf;

use super::DatabaseArgs;
use crate::env_names;

#[derive(Debug, clap::Args)]
pub(crate) struct EnvArgs {
    /// Shell to print the variables for [default: the one in SHELL].
    #[arg(long, value_name = "SHELL", conflicts_with_all = ["json", "dotenv"])]
    pub(crate) shell: Option<EnvShell>,
    /// Print the variables as JSON.
    #[arg(long, conflicts_with = "dotenv")]
    pub(crate) json: bool,
    /// Print the variables as lines of a .env file.
    #[arg(long)]
    pub(crate) dotenv: bool,
    /// Domain that the command finds the server under; the server must answer for it (`isopod serve --env-domains`)
    /// [default: e2b.app].
    #[arg(long = "as", value_name = "DOMAIN", requires = "command")]
    pub(crate) domain_of_command: Option<String>,
    /// Give the command a `docker` that sends the files of `e2b template build` to the server, even if there is another one
    /// on PATH. Without one it gets it anyway.
    #[arg(long, requires = "command")]
    pub(crate) docker: bool,
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// API key of the team [default: as root, one that is created for this].
    #[arg(long, env = env_names::E2B_API_KEY, hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Base URL of the API [default: as root, the server that uses the state directory, else http://127.0.0.1:3000].
    #[arg(long, env = env_names::E2B_API_URL, value_name = "URL")]
    pub(crate) api_url: Option<String>,
    /// PEM file with additional CA certificates to trust when the server is asked.
    #[arg(long, env = env_names::CA_FILE, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Command to run, with its arguments, instead of printing variables.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["shell", "json", "dotenv"])]
    pub(crate) command: Vec<OsString>,
}

/// Shells that variables can be printed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EnvShell {
    Bash,
    Zsh,
    Fish,
    Sh,
}

/// Of the process between `isopod env` and its command.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvCommandArgs {
    /// Command to run, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
