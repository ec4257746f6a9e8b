//! The team's API keys, on servers that let a key manage keys.

use std::time::Duration;

use http::Method;
use isopod_guest_client::transport::encode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyInfo {
    /// The id to revoke it by.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was last used.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub last_used: Option<OffsetDateTime>,
    /// Its scope, if the server reports it.
    #[serde(default)]
    pub scope: Option<String>,
    /// The agent that it is for, if any.
    #[serde(default)]
    pub agent_id: Option<String>,
    /// When it expires.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
}

/// A key to create. The default of every option is the server's. All but the name are specific to Isopod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewKey<'a> {
    /// Its name.
    pub name: &'a str,
    /// `team`, `agent`, `read_only` or `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'a str>,
    /// The agent that it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<&'a str>,
    /// Its lifetime in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
}

/// A key that was just created. Its secret is not returned again.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct NewApiKey {
    /// The data without the secret.
    #[serde(flatten)]
    pub info: ApiKeyInfo,
    /// The key itself.
    pub key: String,
}

impl std::fmt::Debug for NewApiKey {
    /// Does not print the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewApiKey").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Client {
    /// Lists the team's keys.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`] on servers where keys are managed elsewhere.
    pub async fn list_keys(&self) -> Result<Vec<ApiKeyInfo>, ApiError> {
        self.call(Call::new(Method::GET, "/api-keys")).await?.parse()
    }

    /// Creates a key.
    ///
    /// # Errors
    /// Like [`Self::list_keys`].
    pub async fn create_key(&self, name: &str) -> Result<NewApiKey, ApiError> {
        self.create_key_with(&NewKey { name, ..NewKey::default() }).await
    }

    /// Creates a key with fewer permissions than the team's, or with an expiry.
    ///
    /// # Errors
    /// Like [`Self::list_keys`].
    pub async fn create_key_with(&self, key: &NewKey<'_>) -> Result<NewApiKey, ApiError> {
        let call = Call::new(Method::POST, "/api-keys").json(&json!(key)).once(None);
        self.call(call).await?.parse()
    }

    /// Creates a key like this one, which stays valid until the overlap ends. Returns `None` if there is no such key.
    ///
    /// # Errors
    /// Like [`Self::list_keys`].
    pub async fn rotate_key(&self, id: &str, overlap: Duration) -> Result<Option<NewApiKey>, ApiError> {
        let body = json!({ "overlap": overlap.as_secs() });
        let call = Call::new(Method::POST, format!("/api-keys/{}/rotate", encode(id))).json(&body).once(None);
        match self.call(call).await {
            Ok(answer) => answer.parse().map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Revokes a key. Returns false if there is none.
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
