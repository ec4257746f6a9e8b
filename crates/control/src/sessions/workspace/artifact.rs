//! What is known of a file that came out of a run.

use serde::Serialize;

use crate::clock::Timestamp;

/// One artifact, in the words that its readers know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ArtifactInfo {
    pub(crate) filename: String,
    pub(crate) agent_id: Option<String>,
    pub(crate) generated_at: Timestamp,
    pub(crate) size_bytes: u64,
    pub(crate) content_type: String,
}
