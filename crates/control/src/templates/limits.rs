//! What builds of templates may use.

use std::time::Duration;

/// What builds of templates may use.
#[derive(Clone, Copy, Debug)]
pub struct BuildLimits {
    /// Builds at the same time; others wait. Of one team one fewer, so that no team has all places.
    pub at_once: usize,
    /// Builds of one team that wait or are under way.
    pub per_team: usize,
    /// How long one may take.
    pub timeout: Duration,
    /// Size of one upload.
    pub upload: u64,
    /// Size of all uploads of a team that are kept.
    pub team_uploads: u64,
    /// How long uploads are kept after they were last used.
    pub uploads_kept: Duration,
}

impl Default for BuildLimits {
    fn default() -> Self {
        Self {
            at_once: 3,
            per_team: 20,
            timeout: HOUR,
            upload: 4 << 30,
            team_uploads: 32 << 30,
            uploads_kept: HOUR * 24 * 14,
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
