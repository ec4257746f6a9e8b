//! The description of a file that a run produced.

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::Timestamp;

/// One artifact. Its fields have the names that clients know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Artifact)]
pub struct ArtifactInfo {
    pub filename: String,
    pub agent_id: Option<String>,
    pub generated_at: Timestamp,
    pub size_bytes: u64,
    pub content_type: String,
}
