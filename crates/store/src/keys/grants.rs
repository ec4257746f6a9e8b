//! The scope and the lifetime of keys, and their rotation.

use std::time::Duration;

use isopod_wire::node::Secret;
use serde::Serialize;

use super::{ApiKey, TeamId};
use crate::clock::Timestamp;
use crate::database::query;
use crate::secrets::new_api_key;
use crate::{Store, StoreError};

/// What a key may be used for. Each route declares the scopes that it accepts (`http/routes.rs`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything of its team.
    #[default]
    Team,
    /// What belongs to one agent of its team.
    Agent(String),
    /// Read access to everything of its team.
    ReadOnly,
    /// Everything of all teams.
    Admin,
}

/// The properties of a new key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyGrant {
    pub scope: Scope,
    /// How long the key is valid. `None` means until it is revoked.
    pub lifetime: Option<Duration>,
}

/// The result of rotating a key.
#[derive(Debug)]
pub enum Rotation {
    /// The new key. The old one is valid until the overlap ends.
    Done(Box<(super::local::LocalKey, Secret)>),
    NotFound,
    /// The caller may not have a key with this scope.
    Forbidden,
}

impl Scope {
    /// The text form for storage and input.
    pub fn text(&self) -> &'static str {
        match self {
            Self::Team => "team",
            Self::Agent(_) => "agent",
            Self::ReadOnly => "read_only",
            Self::Admin => "admin",
        }
    }

    /// The agent, if the scope is limited to one.
    pub fn agent(&self) -> Option<&str> {
        match self {
            Self::Agent(agent) => Some(agent),
            _ => None,
        }
    }

    /// Parses the text form. An agent's scope needs an agent, and the other scopes must not have one.
    pub fn parse(text: &str, agent: Option<&str>) -> Option<Self> {
        match (text, agent) {
            ("team", None) => Some(Self::Team),
            ("agent", Some(agent)) => Some(Self::Agent(agent.to_owned())),
            ("read_only", None) => Some(Self::ReadOnly),
            ("admin", None) => Some(Self::Admin),
            _ => None,
        }
    }
}

impl Store {
    /// Creates a key with the same properties. The old key is valid until `overlap` ends, so that its users have time
    /// to switch.
    pub async fn rotate_key(
        &self,
        team: &TeamId,
        id: &str,
        overlap: Duration,
        may_be_admin: bool,
    ) -> Result<Rotation, StoreError> {
        let found = self.list_keys(team).await?.into_iter().find(|key| key.id == id);
        let Some(old) = found else { return Ok(Rotation::NotFound) };
        if old.scope == Scope::Admin && !may_be_admin {
            return Ok(Rotation::Forbidden);
        }
        let key = new_api_key();
        let lifetime = old.expires_at.map(|end| old.created_at.until(end));
        let grant = KeyGrant { scope: old.scope.clone(), lifetime };
        let made = self.insert_key_with(team, &old.name, &key, &grant).await?;
        self.expire_key(team, &old, Timestamp::now().plus(overlap)).await?;
        Ok(Rotation::Done(Box::new((made.into(), key))))
    }

    /// If the key expires earlier, that time stays.
    async fn expire_key(&self, team: &TeamId, key: &ApiKey, at: Timestamp) -> Result<(), StoreError> {
        let at = key.expires_at.map_or(at, |end| end.min(at));
        query("UPDATE api_keys SET expires_at = ? WHERE team = ? AND id = ?")
            .bind(at.0)
            .bind(&team.0)
            .bind(&key.id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("set the expiry of an API key"))?;
        Ok(())
    }

    /// The number of valid keys that expire within this time.
    pub async fn keys_that_expire(&self, within: Duration) -> Result<i64, StoreError> {
        let now = Timestamp::now();
        let row =
            query("SELECT count(*) FROM api_keys WHERE revoked_at IS NULL AND expires_at > ? AND expires_at <= ?")
                .bind(now.0)
                .bind(now.plus(within).0)
                .fetch_one(&self.read)
                .await
                .map_err(StoreError::doing("count API keys that expire"))?;
        Ok(row.get(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::hash_key;

    /// During a rotation, several keys are valid at once.
    #[tokio::test]
    async fn after_a_rotation_both_keys_count_until_the_overlap_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let grant = KeyGrant { scope: Scope::Agent("a1".to_owned()), lifetime: None };
        let (old, old_key) = store.create_local_key_with("ci", &grant).await.unwrap();
        let Rotation::Done(made) = store.rotate_local_key(&old.id, Duration::from_millis(150)).await.unwrap() else {
            panic!("not rotated")
        };
        let find = |key: &Secret| {
            let hash = hash_key(&key.0);
            let store = store.clone();
            async move { store.find_key(&hash).await.unwrap() }
        };
        assert!(find(&old_key).await.is_some(), "the old key ended at once");
        assert_eq!(find(&made.1).await.unwrap().scope, Scope::Agent("a1".to_owned()));
        assert_eq!(store.keys_that_expire(Duration::from_secs(60)).await.unwrap(), 1);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(find(&old_key).await.is_none(), "the old key counts for ever");
        assert!(find(&made.1).await.is_some());
        assert!(matches!(store.rotate_local_key("nobody", Duration::ZERO).await.unwrap(), Rotation::NotFound));
    }

    #[test]
    fn scopes_are_read_back_and_half_ones_refused() {
        for scope in [Scope::Team, Scope::Agent("x".to_owned()), Scope::ReadOnly, Scope::Admin] {
            assert_eq!(Scope::parse(scope.text(), scope.agent()), Some(scope));
        }
        assert_eq!(Scope::parse("agent", None), None);
        assert_eq!(Scope::parse("team", Some("x")), None);
        assert_eq!(Scope::parse("root", None), None);
    }
}
