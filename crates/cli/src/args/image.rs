//! What `isopod image` can be told.

use std::path::PathBuf;

use clap::Subcommand;

use crate::env_names;

#[derive(Debug, clap::Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from its registry into the local store.
    Pull(ImagePullArgs),
    /// Take in an archive: what `docker save` writes, or an OCI layout.
    Import(ImageImportArgs),
    /// Write an image to an archive that Docker and Podman read.
    Export(ImageExportArgs),
    /// List the images of the local store.
    #[command(visible_alias = "list")]
    Ls(ImageListArgs),
    /// Take names away; `image gc` frees their space.
    Rm(ImageRemoveArgs),
    /// Remove what no name leads to.
    Gc,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImagePullArgs {
    /// Which, such as debian:12 or ghcr.io/owner/name@sha256:….
    pub(crate) name: String,
    /// Another place for images whose names begin so, NAME=PLACE; several with commas.
    #[arg(long, env = env_names::REGISTRY_MIRRORS, value_name = "NAME=PLACE", value_delimiter = ',')]
    pub(crate) registry_mirror: Vec<String>,
    /// Internal hosts and networks that may be asked, such as 10.0.0.0/8 or registry.lan:5000; several with commas.
    #[arg(long, env = env_names::ALLOW_OUTBOUND, value_name = "PLACE", value_delimiter = ',')]
    pub(crate) allow_outbound: Vec<String>,
    /// Sign in under this name.
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password from standard input.
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageImportArgs {
    /// The archive, perhaps compressed.
    pub(crate) file: PathBuf,
    /// What to call it; without, as the archive says.
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageExportArgs {
    /// Which.
    pub(crate) name: String,
    /// The archive to write.
    pub(crate) file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageListArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageRemoveArgs {
    /// Which.
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
}
