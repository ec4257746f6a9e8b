//! What `isopod assemble-image` can be told.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct AssembleImageArgs {
    /// Name of the image, such as web:v1.
    #[arg(long)]
    pub(crate) name: String,
    /// JSON file that says how a container is run: the `config` of an OCI image.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// When the image was created, in seconds since 1970.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) created: u32,
    /// Archive to write.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Layers as uncompressed tar archives, lowest first.
    #[arg(required = true)]
    pub(crate) layers: Vec<PathBuf>,
}
