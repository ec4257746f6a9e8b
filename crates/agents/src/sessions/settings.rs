//! The settings of sessions.

use std::path::PathBuf;
use std::time::Duration;

use super::search::SearchSettings;
use super::workspace::SyncCaps;

/// The settings of sessions.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// The template of their sandboxes.
    pub template: String,
    /// How long a sandbox runs after the last call before it is paused.
    pub timeout: Duration,
    /// How long a paused sandbox is kept.
    pub keep_paused: Duration,
    /// How long the files of a run are kept after its last output.
    pub keep_files: Duration,
    /// How long an artifact that was promoted into a library is kept there.
    pub keep_promoted: Duration,
    /// A Redis that others read and other servers share.
    pub redis_url: Option<String>,
    /// Keeps the files of runs in `sessions/{run}` below this directory, which others use too, instead of in the
    /// store's directory.
    pub shared_files: Option<PathBuf>,
    /// The search service for `web_search`. Without one, there is no such tool.
    pub search: Option<SearchSettings>,
    /// The limits on transfers of one call.
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
            keep_promoted: DAY * 7,
            redis_url: None,
            shared_files: None,
            search: None,
            caps: SyncCaps::default(),
        }
    }
}
