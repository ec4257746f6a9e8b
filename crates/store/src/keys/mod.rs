//! Teams and their API keys. A key is shown once, when it is created. After that, only its hash and a mask exist.

mod grants;
mod local;

use isopod_wire::node::Secret;
use serde::Serialize;

use crate::database::{Row, query};
use crate::{Store, StoreError};
pub use grants::{KeyGrant, Rotation, Scope};
pub use local::LocalKey;

use crate::clock::Timestamp;
use crate::secrets::{KeyHash, hash_key, new_api_key, new_uuid};

/// The id of a team.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct TeamId(pub String);

/// A key in the form that can be shown.
#[derive(Clone, Debug)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    pub mask: Mask,
    pub created_at: Timestamp,
    pub last_used_at: Option<Timestamp>,
    pub scope: Scope,
    pub expires_at: Option<Timestamp>,
}

/// Enough characters of a key to recognize it.
#[derive(Clone, Debug)]
pub struct Mask {
    pub length: i64,
    pub prefix: String,
    pub suffix: String,
}

/// The owner of a key.
#[derive(Clone, Debug)]
pub struct KeyOwner {
    pub key_id: String,
    pub team: TeamId,
    pub team_name: String,
    pub last_used_at: Option<Timestamp>,
    pub scope: Scope,
}

/// The first key of a new installation.
#[derive(Debug)]
pub enum FirstKey {
    /// Just created. This is the only time that it can be shown.
    Made(Secret),
    /// Specified by the caller.
    Given,
    /// There already are keys.
    Exists,
}

impl Store {
    /// Makes sure that there is a team with a key: the given one, or a new one if there is none at all.
    pub async fn ensure_first_key(&self, given: Option<Secret>) -> Result<FirstKey, StoreError> {
        let team = self.ensure_team().await?;
        if let Some(key) = given {
            self.ensure_key(&team, &key).await?;
            return Ok(FirstKey::Given);
        }
        if !self.list_keys(&team).await?.is_empty() {
            return Ok(FirstKey::Exists);
        }
        let key = new_api_key();
        self.ensure_key(&team, &key).await?;
        Ok(FirstKey::Made(key))
    }

    /// Creates a separate team with one key, for users who share a server without trusting each other.
    pub async fn create_team(&self, name: &str) -> Result<Secret, StoreError> {
        let team = TeamId(new_uuid());
        self.ensure_team_named(&team.0, name).await?;
        let key = new_api_key();
        self.ensure_key(&team, &key).await?;
        Ok(key)
    }

    /// The first team. Creates it if there is none.
    pub async fn ensure_team(&self) -> Result<TeamId, StoreError> {
        let row = query("SELECT id FROM teams ORDER BY created_at, id LIMIT 1")
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("read the first team"))?;
        match row {
            Some(row) => Ok(TeamId(row.get(0))),
            None => self.insert_first_team().await,
        }
    }

    /// If two servers start at once on one database, only one of them creates the team.
    async fn insert_first_team(&self) -> Result<TeamId, StoreError> {
        let failed = StoreError::doing("record the first team");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        transaction.lock("first team").await.map_err(&failed)?;
        query("INSERT INTO teams (id, name, created_at) SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM teams)")
            .bind(new_uuid())
            .bind("default")
            .bind(Timestamp::now().0)
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        let row = query("SELECT id FROM teams ORDER BY created_at, id LIMIT 1").fetch_one(&mut transaction).await;
        let team = TeamId(row.map_err(&failed)?.get(0));
        transaction.commit().await.map_err(&failed)?;
        Ok(team)
    }

    /// Records a key if it does not exist. A revoked key stays revoked.
    async fn ensure_key(&self, team: &TeamId, key: &Secret) -> Result<(), StoreError> {
        if self.find_key_hash(&hash_key(&key.0)).await? {
            return Ok(());
        }
        match self.insert_key(team, "first key", key).await {
            // Another server on the same database was given the same key.
            Err(error) if error.is_duplicate() => Ok(()),
            done => done.map(drop),
        }
    }

    async fn find_key_hash(&self, hash: &KeyHash) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM api_keys WHERE hash = ?")
            .bind(hash.as_slice())
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("look up an API key"))?;
        Ok(row.is_some())
    }

    /// Records a key for everything of a team, without an expiry.
    async fn insert_key(&self, team: &TeamId, name: &str, key: &Secret) -> Result<ApiKey, StoreError> {
        self.insert_key_with(team, name, key, &KeyGrant::default()).await
    }

    pub async fn insert_key_with(
        &self,
        team: &TeamId,
        name: &str,
        key: &Secret,
        grant: &KeyGrant,
    ) -> Result<ApiKey, StoreError> {
        let now = Timestamp::now();
        let made = ApiKey {
            id: new_uuid(),
            name: name.to_owned(),
            mask: Mask::of(&key.0),
            created_at: now,
            last_used_at: None,
            scope: grant.scope.clone(),
            expires_at: grant.lifetime.map(|lifetime| now.plus(lifetime)),
        };
        query(
            "INSERT INTO api_keys (id, team, name, hash, length, mask_prefix, mask_suffix, created_at, scope, agent, \
             expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&made.id)
        .bind(&team.0)
        .bind(&made.name)
        .bind(hash_key(&key.0).as_slice())
        .bind(made.mask.length)
        .bind(&made.mask.prefix)
        .bind(&made.mask.suffix)
        .bind(made.created_at.0)
        .bind(made.scope.text())
        .bind(made.scope.agent())
        .bind(made.expires_at.map(|at| at.0))
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record an API key"))?;
        Ok(made)
    }

    /// The owner of this key, if the key is valid.
    pub async fn find_key(&self, hash: &KeyHash) -> Result<Option<KeyOwner>, StoreError> {
        let row = query(
            "SELECT k.id, k.team, t.name, k.last_used_at, k.scope, k.agent FROM api_keys k \
             JOIN teams t ON t.id = k.team \
             WHERE k.hash = ? AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)",
        )
        .bind(hash.as_slice())
        .bind(Timestamp::now().0)
        .fetch_optional(&self.read)
        .await
        .map_err(StoreError::doing("look up an API key"))?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(KeyOwner {
            key_id: row.get(0),
            team: TeamId(row.get(1)),
            team_name: row.get(2),
            last_used_at: row.get::<Option<i64>>(3).map(Timestamp),
            scope: read_scope(row.get(4), row.get(5))?,
        }))
    }

    pub async fn touch_key(&self, key_id: &str) -> Result<(), StoreError> {
        query("UPDATE api_keys SET last_used_at = ? WHERE id = ?")
            .bind(Timestamp::now().0)
            .bind(key_id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the use of an API key"))?;
        Ok(())
    }

    pub async fn list_keys(&self, team: &TeamId) -> Result<Vec<ApiKey>, StoreError> {
        let rows = query(
            "SELECT id, name, length, mask_prefix, mask_suffix, created_at, last_used_at, scope, agent, expires_at \
             FROM api_keys WHERE team = ? AND revoked_at IS NULL ORDER BY created_at, id",
        )
        .bind(&team.0)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("list API keys"))?;
        rows.iter().map(read_key).collect()
    }

    /// Renames a key. Returns whether it exists.
    pub async fn rename_key(&self, team: &TeamId, id: &str, name: &str) -> Result<bool, StoreError> {
        let done = query("UPDATE api_keys SET name = ? WHERE team = ? AND id = ? AND revoked_at IS NULL")
            .bind(name)
            .bind(&team.0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("rename an API key"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Revokes a key permanently. Returns whether it existed.
    pub async fn revoke_key(&self, team: &TeamId, id: &str) -> Result<bool, StoreError> {
        let done = query("UPDATE api_keys SET revoked_at = ? WHERE team = ? AND id = ? AND revoked_at IS NULL")
            .bind(Timestamp::now().0)
            .bind(&team.0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("revoke an API key"))?;
        Ok(done.rows_affected() > 0)
    }
}

impl Mask {
    /// Shows at most a few characters, and none of a key that is too short.
    fn of(key: &str) -> Self {
        let characters: Vec<char> = key.chars().collect();
        let shown = if characters.len() >= 20 { 4 } else { 0 };
        let prefix_shown = if characters.len() >= 20 { 6 } else { 0 };
        Self {
            length: i64::try_from(characters.len()).unwrap_or(i64::MAX),
            prefix: characters[..prefix_shown].iter().collect(),
            suffix: characters[characters.len() - shown..].iter().collect(),
        }
    }
}

fn read_scope(scope: &str, agent: Option<&str>) -> Result<Scope, StoreError> {
    let corrupt = || StoreError::Corrupt { what: "the scope of a key", value: scope.to_owned() };
    Scope::parse(scope, agent).ok_or_else(corrupt)
}

fn read_key(row: &Row) -> Result<ApiKey, StoreError> {
    Ok(ApiKey {
        id: row.get(0),
        name: row.get(1),
        mask: Mask { length: row.get(2), prefix: row.get(3), suffix: row.get(4) },
        created_at: Timestamp(row.get(5)),
        last_used_at: row.get::<Option<i64>>(6).map(Timestamp),
        scope: read_scope(row.get(7), row.get(8))?,
        expires_at: row.get::<Option<i64>>(9).map(Timestamp),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        (dir, store)
    }

    #[tokio::test]
    async fn the_first_key_is_made_once_and_kept_only_as_a_hash() {
        let (dir, store) = store().await;
        let FirstKey::Made(key) = store.ensure_first_key(None).await.unwrap() else { panic!("no key was made") };
        assert!(matches!(store.ensure_first_key(None).await.unwrap(), FirstKey::Exists));
        assert!(store.find_key(&hash_key(&key.0)).await.unwrap().is_some());
        store.close().await;
        if crate::testing::postgres::is_wanted() {
            return;
        }
        let bytes = std::fs::read(dir.path().join("isopod.db")).unwrap();
        assert!(!bytes.windows(key.0.len()).any(|window| window == key.0.as_bytes()), "the key is in the file");
    }

    #[tokio::test]
    async fn a_revoked_key_counts_no_more_and_is_not_brought_back() {
        let (_dir, store) = store().await;
        let given = Secret("any-text".to_owned());
        store.ensure_first_key(Some(given.clone())).await.unwrap();
        let owner = store.find_key(&hash_key("any-text")).await.unwrap().unwrap();
        assert!(store.revoke_key(&owner.team, &owner.key_id).await.unwrap());
        assert!(!store.revoke_key(&owner.team, &owner.key_id).await.unwrap());
        store.ensure_first_key(Some(given)).await.unwrap();
        assert!(store.find_key(&hash_key("any-text")).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn the_first_team_stays_the_first_when_the_clock_is_set_back() {
        let (_dir, store) = store().await;
        let first = store.ensure_team().await.unwrap();
        let tomorrow = Timestamp::now().plus(std::time::Duration::from_secs(86_400));
        query("UPDATE teams SET created_at = ?").bind(tomorrow.0).execute(&store.write).await.unwrap();
        store.create_team("second").await.unwrap();
        store.ensure_team_named("third", "third").await.unwrap();
        assert_eq!(store.ensure_team().await.unwrap(), first);
        let names: Vec<String> = store.list_teams().await.unwrap().into_iter().map(|team| team.name).collect();
        assert_eq!(names, ["default", "second", "third"]);
    }

    #[test]
    fn a_short_key_is_not_shown_at_all() {
        let mask = Mask::of("geheim");
        assert_eq!((mask.prefix.as_str(), mask.suffix.as_str()), ("", ""));
    }
}
