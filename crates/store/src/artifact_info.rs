//! What is known of a file that came out of a run.

use serde::Serialize;

use crate::clock::Timestamp;

/// One artifact, in the words that its readers know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactInfo {
    pub filename: String,
    pub agent_id: Option<String>,
    pub generated_at: Timestamp,
    pub size_bytes: u64,
    pub content_type: String,
}
