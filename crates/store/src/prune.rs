//! Removes old records, a limited number of rows at a time, so that other statements do not have to wait.

use sqlx::AssertSqlSafe;

use super::{Store, StoreError};
use crate::Retention;
use crate::clock::Timestamp;
use crate::database::query;

const ROWS_AT_ONCE: u32 = 5000;
const ROUNDS: u32 = 100;

impl Store {
    /// Removes old records. Returns how many there were.
    pub async fn prune(&self, now: Timestamp, keep: &Retention) -> Result<u64, StoreError> {
        let mut removed = 0;
        removed += self.prune_table("sandbox_logs", "seq", "at", now.minus(keep.logs)).await?;
        removed += self.prune_table("events", "seq", "at", now.minus(keep.events)).await?;
        removed += self.prune_table("sandbox_metrics", "(sandbox, at)", "at", now.minus(keep.metrics)).await?;
        removed +=
            self.prune_table("idempotency_keys", "(team, key)", "created_at", now.minus(keep.idempotency)).await?;
        removed += self.prune_table("webhook_deliveries", "id", "done_at", now.minus(keep.events)).await?;
        removed += self.prune_table("sessions", "id", "ended_at", now.minus(keep.ended)).await?;
        removed += self.prune_table("sandboxes", "id", "ended_at", now.minus(keep.ended)).await?;
        removed += self.prune_table("runs", "id", "settled_at", now.minus(keep.ended)).await?;
        Ok(removed)
    }

    /// The names are the constants above, never input.
    async fn prune_table(
        &self,
        table: &'static str,
        key: &'static str,
        time: &'static str,
        before: Timestamp,
    ) -> Result<u64, StoreError> {
        let columns = key.trim_matches(['(', ')']);
        let locked = self.write.skip_locked();
        let statement = format!(
            "DELETE FROM {table} WHERE {key} IN \
             (SELECT {columns} FROM {table} WHERE {time} < ? LIMIT {ROWS_AT_ONCE}{locked})"
        );
        let mut removed = 0;
        for _ in 0..ROUNDS {
            let done = query(AssertSqlSafe(statement.clone()))
                .bind(before.0)
                .execute(&self.write)
                .await
                .map_err(StoreError::doing("remove old records"))?;
            removed += done.rows_affected();
            if done.rows_affected() < u64::from(ROWS_AT_ONCE) {
                break;
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isopod_wire::SandboxId;

    use super::*;
    use crate::Sample;

    #[tokio::test]
    async fn old_records_go_and_new_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let sandbox: SandboxId = "iabc".parse().unwrap();
        let now = Timestamp::now();
        let sample = |at| Sample {
            at,
            cpu_count: 1,
            cpu_percent: 0.5,
            mem_used: 1,
            mem_total: 2,
            mem_cache: 0,
            disk_used: 0,
            disk_total: 0,
        };
        let old = (1..=12_000).map(|age| (sandbox.clone(), sample(now.minus(Duration::from_secs(90_000 + age)))));
        let mut samples: Vec<_> = old.collect();
        samples.push((sandbox.clone(), sample(now)));
        store.insert_samples(&samples).await.unwrap();
        assert_eq!(store.prune(now, &Retention::default()).await.unwrap(), 12_000);
        let kept = store.list_samples(&sandbox, Timestamp(0), Timestamp(i64::MAX), 10).await.unwrap();
        assert_eq!(kept, [sample(now)]);
    }
}
