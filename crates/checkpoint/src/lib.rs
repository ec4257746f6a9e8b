//! Saves the processes of a sandbox with their memory, and restores them in another one.
//!
//! CRIU dumps only the user's processes, never the guest or mounts. They are restored below a new guest, in a sandbox that
//! was launched as usual: with other ids, another network and its own writable layer.
//!
//! ```text
//! save      guest holds ─▶ all processes are stopped ─▶ CRIU dumps them ─▶ guest tells what it knows of them
//!           ─▶ they end (pause), or go on (snapshot)
//! restore   a sandbox is launched ─▶ its guest makes their connections again ─▶ CRIU restores them, stopped
//!           ─▶ their rights are checked ─▶ the guest takes them over ─▶ they go on
//! ```
//!
//! All processes are dumped as one tree, so that connections between them stay. Their parent is the guest, which is not
//! dumped. A process that does nothing, the *root*, takes its place: CRIU adopts the guest's children for it. After a
//! restore the root is killed, and they are the new guest's.
//!
//! What is saved is in one directory: `saved.json`, the guest's `state.json`, `files` with what was in `/tmp`, `/run` and
//! `/dev/shm`, and CRIU's `images`. Only root can read it. It is never trusted: a restore has no right over the host, and
//! what comes out of it is checked. Memory that rests is packed (`packed/`).

mod clocks;
mod criu;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod images;
mod packed;
mod processes;
mod restore;
mod save;
mod saved;
mod saved_memory;
mod trial;

use std::io;

use isopod_guest_client::checkpoint::CheckpointError;
use isopod_isolation::cgroup::StopError;
use isopod_isolation::launch::LaunchError;

pub use clocks::SavedClocks;
pub use criu::{Criu, check_criu};
pub use packed::{InUse, PackedMemory, SavedMemories};
pub use processes::wait_until_untraced;
pub use restore::{Restore, Stopped, go_on, restore};
pub use save::{NoteStopped, Save, Saving, save};
pub use saved::{MEMORY, Saved};
pub use saved_memory::{ForRestore, SavedMemory};
pub use trial::{TrialProgram, TrialProgramError};

/// Why memory could not be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A process has something that cannot be saved.
    #[error("{0}")]
    Refused(String),
    #[error("the guest does not take part")]
    Guest(#[from] CheckpointError),
    #[error("could not stop its processes")]
    Stop(#[from] StopError),
    #[error("could not run CRIU")]
    Launch(#[from] LaunchError),
    /// CRIU failed.
    #[error("CRIU failed: {0}")]
    Criu(String),
    #[error("could not {what}")]
    File {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("a restored process has more than its sandbox allows: {0}")]
    Rights(String),
}

/// Names what was being done.
trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T, MemoryError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: &'static str) -> Result<T, MemoryError> {
        self.map_err(|error| MemoryError::File { what, source: error.into() })
    }
}
