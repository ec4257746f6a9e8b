//! Artifacts that were promoted into the library of a client. Their contents are files; the store says where each came
//! from and when it expires.

use super::{Store, StoreError, TeamId};
use crate::ArtifactInfo;
use crate::clock::Timestamp;
use crate::database::{Row, query};

/// A promoted artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Whose library it is in.
    pub client: String,
    pub run: String,
    pub artifact: ArtifactInfo,
    pub promoted_at: Timestamp,
    pub expires_at: Timestamp,
}

/// A promoted artifact whose time is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredPromotion {
    pub team: TeamId,
    pub client: String,
    pub filename: String,
}

const MAX_EXPIRED: i64 = 1000;

impl Store {
    /// Records a promotion on this server. Replaces an earlier one of the same name.
    pub async fn save_promotion(&self, team: &TeamId, promotion: &Promotion) -> Result<(), StoreError> {
        let Promotion { client, run, artifact, promoted_at, expires_at } = promotion;
        query(
            "INSERT INTO promotions (server, team, client, path, run, agent, size, content_type, generated_at, \
             promoted_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (server, team, client, path) DO UPDATE SET run = excluded.run, agent = excluded.agent, \
             size = excluded.size, content_type = excluded.content_type, generated_at = excluded.generated_at, \
             promoted_at = excluded.promoted_at, expires_at = excluded.expires_at",
        )
        .bind(self.server())
        .bind(&team.0)
        .bind(client)
        .bind(&artifact.filename)
        .bind(run)
        .bind(artifact.agent_id.as_deref())
        .bind(artifact.size_bytes.cast_signed())
        .bind(&artifact.content_type)
        .bind(artifact.generated_at.0)
        .bind(promoted_at.0)
        .bind(expires_at.0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a promotion"))?;
        Ok(())
    }

    /// The promotions in a client's library, ordered by name. If several servers have one by the same name, the own one
    /// comes first, then the one that lasts longest.
    pub async fn promotions_of(&self, team: &TeamId, client: &str) -> Result<Vec<Promotion>, StoreError> {
        let rows = query(
            "SELECT path, agent, size, content_type, generated_at, client, run, promoted_at, expires_at \
             FROM promotions WHERE team = ? AND client = ? \
             ORDER BY path, CASE WHEN server = ? THEN 0 ELSE 1 END, expires_at DESC",
        )
        .bind(&team.0)
        .bind(client)
        .bind(self.server())
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("read promotions"))?;
        Ok(rows.iter().map(read_row).collect())
    }

    /// Promotions on this server that have expired, the oldest first, at most a thousand.
    pub async fn expired_promotions(&self, now: Timestamp) -> Result<Vec<ExpiredPromotion>, StoreError> {
        let rows = query(
            "SELECT team, client, path FROM promotions WHERE server = ? AND expires_at <= ? \
             ORDER BY expires_at, team, client, path LIMIT ?",
        )
        .bind(self.server())
        .bind(now.0)
        .bind(MAX_EXPIRED)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("list expired promotions"))?;
        let expired =
            |row: &Row| ExpiredPromotion { team: TeamId(row.get(0)), client: row.get(1), filename: row.get(2) };
        Ok(rows.iter().map(expired).collect())
    }

    /// Whether another server has promoted a file by this name that has not expired.
    pub async fn is_promoted_elsewhere(&self, expired: &ExpiredPromotion, now: Timestamp) -> Result<bool, StoreError> {
        let row = query(
            "SELECT server FROM promotions WHERE team = ? AND client = ? AND path = ? AND server <> ? \
             AND expires_at > ? LIMIT 1",
        )
        .bind(&expired.team.0)
        .bind(&expired.client)
        .bind(&expired.filename)
        .bind(self.server())
        .bind(now.0)
        .fetch_optional(&self.read)
        .await
        .map_err(StoreError::doing("look for promotions of other servers"))?;
        Ok(row.is_some())
    }

    /// Deletes the record of a promotion on this server. Returns whether there was one.
    pub async fn forget_promotion(&self, team: &TeamId, client: &str, filename: &str) -> Result<bool, StoreError> {
        let done = query("DELETE FROM promotions WHERE server = ? AND team = ? AND client = ? AND path = ?")
            .bind(self.server())
            .bind(&team.0)
            .bind(client)
            .bind(filename)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("delete a promotion"))?;
        Ok(done.rows_affected() > 0)
    }
}

fn read_row(row: &Row) -> Promotion {
    Promotion {
        artifact: crate::artifacts::read_row(row),
        client: row.get(5),
        run: row.get(6),
        promoted_at: Timestamp(row.get(7)),
        expires_at: Timestamp(row.get(8)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::postgres;

    fn promotion(client: &str, filename: &str, expires_at: i64) -> Promotion {
        Promotion {
            client: client.to_owned(),
            run: "run-1".to_owned(),
            artifact: ArtifactInfo {
                filename: filename.to_owned(),
                agent_id: Some("writer".to_owned()),
                generated_at: Timestamp(100),
                size_bytes: 5_000_000_000,
                content_type: "text/csv".to_owned(),
            },
            promoted_at: Timestamp(200),
            expires_at: Timestamp(expires_at),
        }
    }

    #[tokio::test]
    async fn a_promotion_is_read_back_and_the_next_of_its_name_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let (team, other) = (TeamId("a".to_owned()), TeamId("b".to_owned()));
        let (first, second) = (promotion("me", "b.csv", 900), promotion("me", "a.csv", 800));
        for one in [&first, &second, &promotion("you", "c.csv", 700)] {
            store.save_promotion(&team, one).await.unwrap();
        }
        assert_eq!(store.promotions_of(&team, "me").await.unwrap(), [second.clone(), first]);
        assert_eq!(store.promotions_of(&other, "me").await.unwrap(), []);

        let mut newer = promotion("me", "b.csv", 1000);
        newer.run = "run-2".to_owned();
        newer.artifact.agent_id = None;
        store.save_promotion(&team, &newer).await.unwrap();
        assert_eq!(store.promotions_of(&team, "me").await.unwrap(), [second, newer]);
    }

    #[tokio::test]
    async fn expired_promotions_are_listed_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = TeamId("a".to_owned());
        for one in [promotion("me", "late", 300), promotion("me", "early", 200), promotion("you", "early", 400)] {
            store.save_promotion(&team, &one).await.unwrap();
        }
        assert_eq!(store.expired_promotions(Timestamp(199)).await.unwrap(), []);
        let names = |expired: Vec<ExpiredPromotion>| -> Vec<String> {
            expired.into_iter().map(|one| format!("{}/{}", one.client, one.filename)).collect()
        };
        let expired = store.expired_promotions(Timestamp(300)).await.unwrap();
        assert!(!store.is_promoted_elsewhere(&expired[0], Timestamp(0)).await.unwrap(), "its own does not count");
        assert_eq!(names(expired), ["me/early", "me/late"]);

        assert!(store.forget_promotion(&team, "me", "early").await.unwrap());
        assert!(!store.forget_promotion(&team, "me", "early").await.unwrap(), "it is gone");
        assert_eq!(names(store.expired_promotions(Timestamp(999)).await.unwrap()), ["me/late", "you/early"]);
    }

    #[tokio::test]
    async fn servers_that_share_a_database_know_each_others_promotions_and_sweep_their_own() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let url = postgres::database_for(dirs[0].path()).await;
        let one = Store::connect(&url, dirs[0].path(), "one").await.unwrap();
        let two = Store::connect(&url, dirs[1].path(), "two").await.unwrap();
        let team = one.ensure_team().await.unwrap();
        let (early, late) = (promotion("me", "a.csv", 200), promotion("me", "a.csv", 400));
        one.save_promotion(&team, &early).await.unwrap();
        two.save_promotion(&team, &late).await.unwrap();
        assert_eq!(one.promotions_of(&team, "me").await.unwrap(), [early.clone(), late.clone()]);
        assert_eq!(two.promotions_of(&team, "me").await.unwrap(), [late.clone(), early]);

        assert_eq!(two.expired_promotions(Timestamp(300)).await.unwrap(), []);
        let expired = one.expired_promotions(Timestamp(300)).await.unwrap();
        assert!(one.is_promoted_elsewhere(&expired[0], Timestamp(300)).await.unwrap());
        assert!(!one.is_promoted_elsewhere(&expired[0], Timestamp(400)).await.unwrap(), "that one has expired too");
        assert!(one.forget_promotion(&team, "me", "a.csv").await.unwrap());
        assert_eq!(one.promotions_of(&team, "me").await.unwrap(), [late]);
    }
}
