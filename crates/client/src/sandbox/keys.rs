//! The team's API keys, on servers that let a key manage keys.

use http::Method;
use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};
use crate::transport::encode;

/// A key, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyInfo {
    /// What to revoke it by.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was last shown to the server.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub last_used: Option<OffsetDateTime>,
}

/// A key that was just made. It cannot be shown again.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct NewApiKey {
    /// What is known about it from now on.
    #[serde(flatten)]
    pub info: ApiKeyInfo,
    /// The key itself.
    pub key: String,
}

impl std::fmt::Debug for NewApiKey {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewApiKey").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Client {
    /// The team's keys.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`] on servers where keys are managed elsewhere.
    pub async fn list_keys(&self) -> Result<Vec<ApiKeyInfo>, ApiError> {
        self.call(Call::new(Method::GET, "/api-keys")).await?.parse()
    }

    /// Makes a key.
    ///
    /// # Errors
    /// Like [`Self::list_keys`].
    pub async fn create_key(&self, name: &str) -> Result<NewApiKey, ApiError> {
        let call = Call::new(Method::POST, "/api-keys").json(&json!({ "name": name })).once(None);
        self.call(call).await?.parse()
    }

    /// Revokes a key. False when there is none.
    ///
    /// # Errors
    /// Like [`Self::list_keys`].
    pub async fn revoke_key(&self, id: &str) -> Result<bool, ApiError> {
        match self.call(Call::new(Method::DELETE, format!("/api-keys/{}", encode(id)))).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
