//! The streams that a process prints to.

use serde::{Deserialize, Serialize};

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Pty,
}
