//! Ends sandboxes.

use http::Method;
use isopod_wire::SandboxId;

use super::call::Call;
use super::{ApiError, Client};

impl Client {
    /// Ends a sandbox. Returns false if there is none.
    ///
    /// # Errors
    /// If the server cannot be reached or fails.
    pub async fn kill(&self, sandbox: &SandboxId) -> Result<bool, ApiError> {
        match self.call(Call::new(Method::DELETE, format!("/sandboxes/{sandbox}"))).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
