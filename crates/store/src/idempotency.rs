//! Idempotency keys: a create request that is sent twice creates one sandbox.

use isopod_wire::SandboxId;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::query;

/// The result of claiming a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key is new. Continue, then finish or release the key.
    First,
    /// The same request has created this sandbox.
    Done(SandboxId),
    /// The same request is still in progress.
    Unfinished,
    /// The key was used for another request.
    Mismatch,
}

impl Store {
    pub async fn claim_key(&self, team: &TeamId, key: &str, request: &[u8; 32]) -> Result<Claim, StoreError> {
        let made = query(
            "INSERT INTO idempotency_keys (team, key, request_hash, done, created_at, server) VALUES (?, ?, ?, 0, ?, ?) \
             ON CONFLICT DO NOTHING",
        )
        .bind(&team.0)
        .bind(key)
        .bind(request.as_slice())
        .bind(Timestamp::now().0)
        .bind(self.server())
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("claim an idempotency key"))?;
        if made.rows_affected() == 1 {
            return Ok(Claim::First);
        }
        self.read_claim(team, key, request).await
    }

    /// Whether a request with this key is done or in progress. Read through the writer, because it may have begun a moment ago.
    pub async fn has_idempotency_key(&self, team: &TeamId, key: &str) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM idempotency_keys WHERE team = ? AND key = ?")
            .bind(&team.0)
            .bind(key)
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("look for an idempotency key"))?;
        Ok(row.is_some())
    }

    async fn read_claim(&self, team: &TeamId, key: &str, request: &[u8; 32]) -> Result<Claim, StoreError> {
        let row = query("SELECT request_hash, sandbox, done FROM idempotency_keys WHERE team = ? AND key = ?")
            .bind(&team.0)
            .bind(key)
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("read an idempotency key"))?;
        // Between the two statements, the first request may have failed and released its key.
        let Some(row) = row else { return Ok(Claim::Unfinished) };
        if row.get::<&[u8]>(0) != request.as_slice() {
            return Ok(Claim::Mismatch);
        }
        let sandbox: Option<&str> = row.get(1);
        match (row.get::<bool>(2), sandbox.and_then(|text| text.parse().ok())) {
            (true, Some(sandbox)) => Ok(Claim::Done(sandbox)),
            _ => Ok(Claim::Unfinished),
        }
    }

    /// Records which sandbox the request is creating.
    pub async fn attach_key(&self, team: &TeamId, key: &str, sandbox: &SandboxId) -> Result<(), StoreError> {
        query("UPDATE idempotency_keys SET sandbox = ? WHERE team = ? AND key = ?")
            .bind(sandbox.as_str())
            .bind(&team.0)
            .bind(key)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record the sandbox of an idempotency key"))?;
        Ok(())
    }

    /// Settles the keys of requests that this server left unfinished when it died. Keys of live sandboxes are done. The
    /// others may be used again.
    pub async fn settle_keys(&self) -> Result<(), StoreError> {
        let failed = StoreError::doing("settle idempotency keys");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query(
            "UPDATE idempotency_keys SET done = 1 WHERE done = 0 AND server = ? AND sandbox IN \
             (SELECT id FROM sandboxes WHERE state NOT IN ('creating', 'ended'))",
        )
        .bind(self.server())
        .execute(&mut transaction)
        .await
        .map_err(&failed)?;
        query("DELETE FROM idempotency_keys WHERE done = 0 AND server = ?")
            .bind(self.server())
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)
    }

    pub async fn finish_key(&self, team: &TeamId, key: &str, sandbox: &SandboxId) -> Result<(), StoreError> {
        query("UPDATE idempotency_keys SET done = 1, sandbox = ? WHERE team = ? AND key = ?")
            .bind(sandbox.as_str())
            .bind(&team.0)
            .bind(key)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("finish an idempotency key"))?;
        Ok(())
    }

    /// Releases the key of a request that failed and left nothing, so that it may be used again.
    pub async fn release_key(&self, team: &TeamId, key: &str) -> Result<(), StoreError> {
        query("DELETE FROM idempotency_keys WHERE team = ? AND key = ? AND done = 0")
            .bind(&team.0)
            .bind(key)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("release an idempotency key"))?;
        Ok(())
    }
}
