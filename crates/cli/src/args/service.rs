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
    /// Write a systemd unit that starts the server at boot and keeps sandboxes running when the server restarts.
    Install(ServiceInstallArgs),
    /// Stop the server and remove the unit; sandboxes and the state directory stay.
    Uninstall,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServiceInstallArgs {
    /// Print the unit instead of writing it.
    #[arg(long)]
    pub(crate) print: bool,
    /// Settings file for the service.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Additional options for `isopod serve`, after --.
    #[arg(last = true, value_name = "SERVE_OPTIONS")]
    pub(crate) serve: Vec<String>,
}
