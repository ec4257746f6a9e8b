//! The servers that share a database, on Isopod's servers. For admins.

use http::Method;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::{ApiError, Client};

/// A server and its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Its id, which it keeps with its state directory.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Empty for versions that don't report it.
    pub version: String,
    /// `ready`, or `unhealthy` if the others haven't heard from it for a while.
    pub status: String,
    /// When it last reported, as RFC 3339.
    pub last_seen_at: String,
    /// Sandboxes that run, are being created or are being removed.
    pub sandbox_count: u32,
    /// Sandboxes that are paused.
    pub paused_sandbox_count: u32,
    /// Whether it is the server that answered.
    pub is_answering: bool,
}

impl Client {
    /// The servers that share the database of this one.
    ///
    /// # Errors
    /// If the key is not an admin's.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>, ApiError> {
        self.call(Call::new(Method::GET, "/nodes")).await?.parse()
    }
}
