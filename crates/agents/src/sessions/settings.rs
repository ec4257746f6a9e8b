//! What sessions can be told.

use std::path::PathBuf;
use std::time::Duration;

use super::workspace::SyncCaps;

/// How sessions work.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// What their sandboxes are made of.
    pub template: String,
    /// How long a sandbox runs after the last call before it is paused.
    pub timeout: Duration,
    /// How long a paused one is kept.
    pub keep_paused: Duration,
    /// How long the files of a run are kept after the last of them came out.
    pub keep_files: Duration,
    /// A Redis that others read and other servers share.
    pub redis_url: Option<String>,
    /// Runs have their files in `sessions/{run}` below this directory, which others use too, instead of below the store's.
    pub shared_files: Option<PathBuf>,
    /// How much is moved for one call.
    pub caps: SyncCaps,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            template: "code-interpreter-v1".to_owned(),
            timeout: Duration::from_secs(600),
            keep_paused: DAY * 7,
            keep_files: DAY * 7,
            redis_url: None,
            shared_files: None,
            caps: SyncCaps::default(),
        }
    }
}
