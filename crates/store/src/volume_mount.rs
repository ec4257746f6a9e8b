//! The volumes of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A volume in a sandbox, with the name that its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}
