//! Takes a server out of use for maintenance of its host, and back. For admins, on Isopod's servers.

use std::time::Duration;

use http::Method;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::call::Call;
use super::create::whole_seconds;
use super::{ApiError, Client};

/// How much longer than its deadline a drain may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Where a drained server's sandboxes are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drained {
    /// Sandboxes that run, and go on.
    pub running: Vec<SandboxId>,
    /// Paused sandboxes that are on disk.
    pub saved: Vec<SandboxId>,
    /// Paused sandboxes whose memory is still in RAM.
    pub not_saved: Vec<NotSaved>,
}

/// A paused sandbox whose memory is still in RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotSaved {
    /// The sandbox.
    #[serde(rename = "sandboxID")]
    pub sandbox: SandboxId,
    /// Why it could not be saved.
    pub reason: String,
}

impl Client {
    /// Lets the server create and resume no sandboxes from now on, until [`Self::uncordon`] or its restart, and saves those
    /// that are paused. Waits for that until the deadline.
    ///
    /// # Errors
    /// If the key is not an admin's.
    pub async fn drain(&self, deadline: Duration) -> Result<Drained, ApiError> {
        let call = Call::new(Method::POST, "/isopod/node/drain").json(&json!({ "deadline": whole_seconds(deadline) }));
        self.call_within(deadline + ANSWER_TIME, call).await?.parse()
    }

    /// Ends a drain.
    ///
    /// # Errors
    /// If the key is not an admin's.
    pub async fn uncordon(&self) -> Result<(), ApiError> {
        self.call(Call::new(Method::POST, "/isopod/node/uncordon").json(&json!({}))).await.map(drop)
    }
}
