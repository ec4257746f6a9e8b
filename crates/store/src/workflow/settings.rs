//! Settings of a whole run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rule::Rule;

/// The settings of a whole run, which are stored with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSettings {
    /// The run ends if it uses more tokens than this.
    pub max_token_budget: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub approval_timeout_ms: Option<u64>,
    pub on_failure: OnFailure,
    pub attached_files: Vec<String>,
    /// Whether to ask a person if an agent reports success but its answer has no substance.
    pub soft_failures: bool,
    pub rules: Vec<Rule>,
}

/// What a failed node means for nodes that do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The run ends at once.
    #[default]
    Stop,
    /// They still run. The run fails when nothing more can run.
    Continue,
}
