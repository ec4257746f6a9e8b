//! What holds for a whole run.

use serde::{Deserialize, Serialize};

use super::rule::Rule;

/// What holds for the whole run. Stored with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSettings {
    /// More tokens than this end the run.
    pub max_token_budget: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub approval_timeout_ms: Option<u64>,
    pub on_failure: OnFailure,
    pub attached_files: Vec<String>,
    /// Agents whose answer is empty of substance wait for a person.
    pub soft_failures: bool,
    pub rules: Vec<Rule>,
}

/// What a failed node means for those that do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The run ends at once.
    #[default]
    Stop,
    /// They are run; the run fails when nothing more can be.
    Continue,
}
