//! Volumes of a sandbox.

use serde::{Deserialize, Serialize};

/// A volume in a sandbox, as its owner named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}
