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
    /// Import an archive written by `docker save`, or an OCI layout.
    Import(ImageImportArgs),
    /// Export an image to an archive that Docker and Podman can read.
    Export(ImageExportArgs),
    /// List images in the local store.
    #[command(visible_alias = "list")]
    Ls(ImageListArgs),
    /// Remove image names; `image gc` frees their space.
    Rm(ImageRemoveArgs),
    /// Remove data that no image name refers to.
    Gc,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImagePullArgs {
    /// Image to pull, such as debian:12 or ghcr.io/owner/name@sha256:….
    pub(crate) name: String,
    /// Mirror for images whose names start with NAME; comma-separated.
    #[arg(long, env = env_names::REGISTRY_MIRRORS, value_name = "NAME=PLACE", value_delimiter = ',')]
    pub(crate) registry_mirror: Vec<String>,
    /// Internal hosts and networks that may be contacted, such as 10.0.0.0/8 or registry.lan:5000; comma-separated.
    #[arg(long, env = env_names::ALLOW_OUTBOUND, value_name = "PLACE", value_delimiter = ',')]
    pub(crate) allow_outbound: Vec<String>,
    /// User name for the registry.
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password from standard input.
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageImportArgs {
    /// Archive, optionally compressed.
    pub(crate) file: PathBuf,
    /// Name for the image [default: as in the archive].
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageExportArgs {
    /// Image to export.
    pub(crate) name: String,
    /// Archive to write.
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
    /// Image names to remove.
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
}
