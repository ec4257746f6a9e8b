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
    /// Make an authority of this machine's own and a certificate for the server. What is there already is kept.
    Init(TlsInitArgs),
    /// Print the authority's certificate, to be given to clients.
    Ca {
        /// Together with the authorities that this machine trusts, for programs that know only one file.
        #[arg(long)]
        bundle: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct TlsInitArgs {
    /// The domain of sandbox host names. The certificate is for it and for all names right below it.
    #[arg(long, default_value = "isopod.localhost", value_name = "DOMAIN")]
    pub(crate) domain: String,
    /// Another name or address of the server; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Where to put the files, instead of the state directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
