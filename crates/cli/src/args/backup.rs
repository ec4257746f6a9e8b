//! What `isopod backup` and `isopod restore` can be told.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The backup, a tar archive. It has keys in it: keep it private.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}
