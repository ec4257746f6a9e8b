//! Keys for users with direct access to the store, which is the way back in if all keys are lost. They belong to the
//! first team.

use std::time::Duration;

use isopod_wire::node::Secret;
use serde::Serialize;

use super::ApiKey;
use super::grants::{KeyGrant, Rotation};
use crate::clock::Timestamp;
use crate::secrets::new_api_key;
use crate::{Store, StoreError};

/// A key, without its secret.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalKey {
    /// The id for revoking it.
    pub id: String,
    pub name: String,
    /// When it was created, in the format of the API.
    pub created_at: String,
    /// When it was last used.
    pub last_used: Option<String>,
    /// What it may be used for: team, agent, read_only or admin.
    pub scope: String,
    /// The agent, if the key is limited to one.
    pub agent: Option<String>,
    /// When it expires.
    pub expires_at: Option<String>,
}

impl From<ApiKey> for LocalKey {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            name: key.name,
            created_at: key.created_at.to_rfc3339(),
            last_used: key.last_used_at.map(Timestamp::to_rfc3339),
            scope: key.scope.text().to_owned(),
            agent: key.scope.agent().map(str::to_owned),
            expires_at: key.expires_at.map(Timestamp::to_rfc3339),
        }
    }
}

impl Store {
    /// Creates a key of the first team. A server that uses this store accepts it at once.
    pub async fn create_local_key(&self, name: &str) -> Result<(LocalKey, Secret), StoreError> {
        self.create_local_key_with(name, &KeyGrant::default()).await
    }

    /// Like [`Self::create_local_key`], with a limited scope or lifetime.
    pub async fn create_local_key_with(&self, name: &str, grant: &KeyGrant) -> Result<(LocalKey, Secret), StoreError> {
        let team = self.ensure_team().await?;
        let key = new_api_key();
        Ok((self.insert_key_with(&team, name, &key, grant).await?.into(), key))
    }

    /// Rotates a key of the first team. The old key is valid until the overlap ends.
    pub async fn rotate_local_key(&self, id: &str, overlap: Duration) -> Result<Rotation, StoreError> {
        let team = self.ensure_team().await?;
        self.rotate_key(&team, id, overlap, true).await
    }

    /// The first team's keys.
    pub async fn list_local_keys(&self) -> Result<Vec<LocalKey>, StoreError> {
        let team = self.ensure_team().await?;
        Ok(self.list_keys(&team).await?.into_iter().map(LocalKey::from).collect())
    }

    /// Revokes a key of the first team permanently. Returns whether it existed.
    pub async fn revoke_local_key(&self, id: &str) -> Result<bool, StoreError> {
        let team = self.ensure_team().await?;
        self.revoke_key(&team, id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::hash_key;

    #[tokio::test]
    async fn a_local_key_counts_until_it_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let (made, key) = store.create_local_key("mine").await.unwrap();
        assert!(store.find_key(&hash_key(&key.0)).await.unwrap().is_some());
        assert_eq!(store.list_local_keys().await.unwrap().len(), 1);
        assert!(store.revoke_local_key(&made.id).await.unwrap());
        assert!(!store.revoke_local_key(&made.id).await.unwrap());
        assert!(store.find_key(&hash_key(&key.0)).await.unwrap().is_none());
    }
}
