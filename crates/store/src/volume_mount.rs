//! The volumes of a sandbox.

use serde::{Deserialize, Serialize};

/// A volume in a sandbox, with the name that its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}
