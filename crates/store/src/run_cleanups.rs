//! The outbox: cleanups of ended runs, until they are confirmed.

use super::{Store, StoreError, TeamId};
use crate::RunId;
use crate::clock::Timestamp;
use crate::database::{Row, query};

/// What to clean up.
#[derive(Clone, Debug)]
pub struct Cleanup {
    pub run: RunId,
    pub team: TeamId,
    pub sandbox_done: bool,
    /// Every agent service has confirmed or was given up.
    pub agent_done: bool,
    /// A sandbox existed and is now gone.
    pub killed: bool,
    pub attempts: u32,
}

impl Store {
    /// The due cleanups of this server's runs, the longest due first.
    pub async fn due_cleanups(&self, now: Timestamp, limit: u32) -> Result<Vec<Cleanup>, StoreError> {
        let rows = query(
            "SELECT c.run, c.team, c.sandbox_done, c.agent_done, c.killed, c.attempts FROM run_cleanups c \
             JOIN runs r ON r.id = c.run WHERE c.done_at IS NULL AND c.next_at <= ? AND r.server = ? \
             ORDER BY c.next_at, c.run LIMIT ?",
        )
        .bind(now.0)
        .bind(self.server())
        .bind(limit)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("read due cleanups"))?;
        rows.iter().map(read_cleanup).collect()
    }

    /// When the next cleanup is due.
    pub async fn next_cleanup(&self) -> Result<Option<Timestamp>, StoreError> {
        let row = query(
            "SELECT MIN(c.next_at) FROM run_cleanups c JOIN runs r ON r.id = c.run \
             WHERE c.done_at IS NULL AND r.server = ?",
        )
        .bind(self.server())
        .fetch_one(&self.read)
        .await
        .map_err(StoreError::doing("read the time of the next cleanup"))?;
        Ok(row.get::<Option<i64>>(0).map(Timestamp))
    }

    /// Records an attempt. `next` is the time of the next attempt, or `None` if everything is confirmed.
    pub async fn record_cleanup(
        &self,
        cleanup: &Cleanup,
        next: Option<Timestamp>,
        error: Option<String>,
    ) -> Result<(), StoreError> {
        let failed = StoreError::doing("record a cleanup");
        let now = Timestamp::now();
        let done_at = next.is_none().then_some(now.0);
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query(
            "UPDATE run_cleanups SET sandbox_done = ?, agent_done = ?, killed = ?, attempts = attempts + 1, \
             next_at = ?, last_error = ?, done_at = ? WHERE run = ?",
        )
        .bind(cleanup.sandbox_done)
        .bind(cleanup.agent_done)
        .bind(cleanup.killed)
        .bind(next.unwrap_or(now).0)
        .bind(error)
        .bind(done_at)
        .bind(cleanup.run.as_str())
        .execute(&mut transaction)
        .await
        .map_err(&failed)?;
        query("UPDATE runs SET settled_at = ? WHERE id = ?")
            .bind(done_at)
            .bind(cleanup.run.as_str())
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)
    }

    /// Opens a completed cleanup again, in the same row, because a sandbox of the run was seen.
    pub async fn reopen_cleanup(&self, run: &RunId) -> Result<bool, StoreError> {
        let done = query(
            "UPDATE run_cleanups SET sandbox_done = 0, done_at = NULL, next_at = ? WHERE run = ? AND done_at IS NOT NULL",
        )
        .bind(Timestamp::now().0)
        .bind(run.as_str())
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("reopen a cleanup"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Whether a run's cleanup is confirmed, or `None` if there is nothing to clean up yet.
    pub async fn cleanup_done(&self, run: &RunId) -> Result<Option<bool>, StoreError> {
        let row = query("SELECT done_at IS NOT NULL FROM run_cleanups WHERE run = ?")
            .bind(run.as_str())
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("read a cleanup"))?;
        Ok(row.map(|row| row.get(0)))
    }
}

fn read_cleanup(row: &Row) -> Result<Cleanup, StoreError> {
    let run: &str = row.get(0);
    Ok(Cleanup {
        run: run.parse().map_err(|_| StoreError::Corrupt { what: "a run's id", value: run.to_owned() })?,
        team: TeamId(row.get(1)),
        sandbox_done: row.get(2),
        agent_done: row.get(3),
        killed: row.get(4),
        attempts: row.get(5),
    })
}
