//! Errors of creating, finding and removing the `base` template.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The host keeps `/bin` or `/lib` apart from `/usr`. Two mounts cannot present its files.
    #[error("the host's {0} is not a link into /usr; a merged /usr is needed to build the base from the host")]
    NotUsrMerged(PathBuf),
    /// Layers contain files of many owners and whiteouts. Only root can create those.
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
    #[error("cannot parse the manifest {path}")]
    Manifest { path: PathBuf, source: serde_json::Error },
    #[error("there is no base generation {0:?}")]
    NoSuchGeneration(String),
    /// A [`super::Base`] holds the generation, possibly in another process, or a sandbox uses it.
    #[error("base generation {0:?} is in use")]
    InUse(String),
}
