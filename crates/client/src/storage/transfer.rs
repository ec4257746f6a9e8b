//! Copies and moves files within the execution.

use http::Method;
use serde_json::json;

use super::{FileStorage, StorageError};
use crate::sandbox::Call;

impl FileStorage {
    /// Copies a file to another key, with its metadata.
    ///
    /// # Errors
    /// [`ApiError::NotFound`](crate::ApiError::NotFound) when there is no such file.
    pub async fn copy(&self, from: &str, to: &str) -> Result<(), StorageError> {
        self.transfer("/copy", from, to).await
    }

    /// Moves a file to another key, atomically.
    ///
    /// # Errors
    /// Like [`Self::copy`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        self.transfer("/move", from, to).await
    }

    async fn transfer(&self, verb: &str, from: &str, to: &str) -> Result<(), StorageError> {
        let call = Call::new(Method::POST, self.url(verb)).json(&json!({ "from": from, "to": to }));
        self.client.call(call.once(None)).await?;
        Ok(())
    }
}
