//! The lifetime of sandboxes.

use std::time::Duration;

use http::Method;
use isopod_wire::SandboxId;
use serde_json::json;

use super::call::Call;
use super::create::whole_seconds;
use super::{ApiError, Client};

impl Client {
    /// Sets the lifetime of a sandbox from now, which may be longer or shorter than before.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub async fn set_timeout(&self, sandbox: &SandboxId, timeout: Duration) -> Result<(), ApiError> {
        let call = Call::new(Method::POST, format!("/sandboxes/{sandbox}/timeout"));
        self.call(call.json(&json!({ "timeout": whole_seconds(timeout) }))).await?;
        Ok(())
    }
}
