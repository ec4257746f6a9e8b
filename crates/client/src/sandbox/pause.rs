//! Pausing sandboxes. [`Client::connect`] lets them run again.

use http::Method;
use isopod_wire::SandboxId;
use serde_json::json;

use super::call::Call;
use super::{ApiError, Client};

impl Client {
    /// Pauses a sandbox. With its memory it goes on where it was; without, only its files are kept. False when it was
    /// paused already.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when it does not exist.
    pub async fn pause(&self, sandbox: &SandboxId, keep_memory: bool) -> Result<bool, ApiError> {
        let call = Call::new(Method::POST, format!("/sandboxes/{sandbox}/pause"));
        match self.call(call.json(&json!({ "memory": keep_memory }))).await {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
