//! The limits of template builds.

use std::time::Duration;

/// The limits of template builds.
#[derive(Clone, Copy, Debug)]
pub struct BuildLimits {
    /// Maximum number of concurrent builds; others wait. One team can use one slot less, so that no team has all of
    /// them.
    pub at_once: usize,
    /// Maximum number of queued and running builds of one team.
    pub per_team: usize,
    /// The time limit of one build.
    pub timeout: Duration,
    /// Maximum size of one upload.
    pub upload: u64,
    /// Maximum size of all stored uploads of a team.
    pub team_uploads: u64,
    /// How long uploads are kept after their last use.
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
