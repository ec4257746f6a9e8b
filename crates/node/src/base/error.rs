//! What can go wrong while the `base` template is made, found or removed.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The host keeps `/bin` or `/lib` apart from `/usr`; its files cannot be taken over by two mounts.
    #[error("the host's {0} is not a link into /usr; a merged /usr is needed to build the base from the host")]
    NotUsrMerged(PathBuf),
    /// Layers hold files of many owners and whiteouts, which only root can make.
    #[error("the base can only be built by root")]
    NotRoot,
    /// The host's own tree could not be read.
    #[error("cannot read {path} of the host")]
    Host { path: PathBuf, source: Errno },
    /// A layer could not be written.
    #[error("cannot write {path} of the base")]
    Layer { path: PathBuf, source: Errno },
    /// Something in the layers directory itself failed.
    #[error("cannot {action} {path}")]
    Store { action: &'static str, path: PathBuf, source: io::Error },
    /// The manifest of a generation is damaged.
    #[error("the manifest {path} is not readable")]
    Manifest { path: PathBuf, source: serde_json::Error },
    /// There is no such generation.
    #[error("there is no base generation {0:?}")]
    NoSuchGeneration(String),
    /// The generation is held by a [`super::Base`] somewhere, perhaps in another process, or a sandbox stands on it.
    #[error("base generation {0:?} is in use")]
    InUse(String),
}
