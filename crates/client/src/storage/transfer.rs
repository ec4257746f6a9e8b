//! Copying and moving files within the execution.

use http::Method;
use serde_json::json;

use super::{FileStorage, StorageError};
use crate::sandbox::Call;

impl FileStorage {
    /// Writes the same file under another key, with what is noted about it.
    ///
    /// # Errors
    /// [`ApiError::NotFound`](crate::ApiError::NotFound) when there is no such file.
    pub async fn copy(&self, from: &str, to: &str) -> Result<(), StorageError> {
        self.transfer("/copy", from, to).await
    }

    /// Gives a file another key, at once and whole.
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
