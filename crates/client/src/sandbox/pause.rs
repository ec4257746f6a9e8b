//! Pauses sandboxes. [`Client::connect`] resumes them.

use http::Method;
use isopod_wire::SandboxId;
use serde_json::json;

use super::call::Call;
use super::{ApiError, Client};

impl Client {
    /// Pauses a sandbox. With its memory, it continues where it was; without, only its files are kept. Returns false if
    /// it was already paused.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub async fn pause(&self, sandbox: &SandboxId, keep_memory: bool) -> Result<bool, ApiError> {
        let call = Call::new(Method::POST, format!("/sandboxes/{sandbox}/pause"));
        match self.call(call.json(&json!({ "memory": keep_memory }))).await {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
