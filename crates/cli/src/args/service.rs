//! What `isopod service` can be told.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write a systemd unit that starts the server with the machine and leaves sandboxes alone when it restarts.
    Install(ServiceInstallArgs),
    /// Remove the unit. Sandboxes and the state directory stay.
    Uninstall,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServiceInstallArgs {
    /// Print the unit instead of writing it.
    #[arg(long)]
    pub(crate) print: bool,
    /// The settings file that the service reads.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Further options for `isopod serve`, after --.
    #[arg(last = true, value_name = "SERVE_OPTIONS")]
    pub(crate) serve: Vec<String>,
}
