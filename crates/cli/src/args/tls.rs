//! What `isopod tls` can be told.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    #[command(subcommand)]
    pub(crate) command: TlsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TlsCommand {
    /// Create a local certificate authority and a server certificate; existing ones are kept if valid for the names.
    Init(TlsInitArgs),
    /// Print the certificate of the local certificate authority, for clients.
    Ca {
        /// Include the certificate authorities that this machine trusts, for programs that read only one file.
        #[arg(long)]
        bundle: bool,
    },
    /// Let this machine's browsers and other programs trust the local certificate authority.
    Trust {
        /// No longer trust it.
        #[arg(long)]
        remove: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct TlsInitArgs {
    /// Domain of sandbox host names; the certificate is valid for it and all names directly below it.
    #[arg(long, default_value = "isopod.localhost", value_name = "DOMAIN")]
    pub(crate) domain: String,
    /// Additional name or address of the server (repeatable).
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Directory to write the files to, instead of the state directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
