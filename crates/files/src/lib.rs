//! Files of the workspace as the API exposes them: those of executions by key, those of volumes by path.
//!
//! All operations work on plain directories below the root of the [`Workspace`], which code in sandboxes changes at the
//! same time. Therefore nothing is assumed about them: the kernel resolves paths below their own tree ([`tree`]), files
//! appear complete or not at all, and entries that are removed concurrently count as missing.
//!
//! [`Workspace`]: workspace::Workspace

mod default_mount;
mod error;
mod execution;
mod info;
mod key;
mod list;
mod metadata;
mod meter;
mod offload;
mod path;
mod pieces;
mod put;
mod refusal;
mod store;
mod temp;
mod transfer;
mod tree;
mod volume;
mod walk;
pub mod workspace;

pub use default_mount::{DefaultMountError, DefaultMounts, EVERY_TEAM};
pub use error::FileError;
pub use info::StorageInfo;
pub use key::Key;
pub use list::{KeyQuery, ListedFile};
pub use metadata::Metadata;
pub use meter::FileLimits;
pub use offload::{FileSink, Offloaded, blocking};
pub use path::{InnerPath, PathError};
pub use pieces::{exactly, pieces_of};
pub use put::Put;
pub use store::{FileStore, Files, Opened};
pub use tree::Tree;
pub use volume::{EntryStat, Ownership, VolumeFiles};
