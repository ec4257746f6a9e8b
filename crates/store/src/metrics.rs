//! Samples of the resource use of sandboxes.

use isopod_wire::SandboxId;

use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row};

/// The resource use of a sandbox at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub at: Timestamp,
    pub cpu_count: i64,
    pub cpu_percent: f64,
    pub mem_used: i64,
    pub mem_total: i64,
    pub mem_cache: i64,
    pub disk_used: i64,
    pub disk_total: i64,
}

const COLUMNS: &str = "sandbox, at, cpu_count, cpu_percent, mem_used, mem_total, mem_cache, disk_used, disk_total";
/// SQLite takes at most 32,766 values in one statement, and a row has nine.
const ROWS_PER_STATEMENT: usize = 500;

impl Store {
    pub async fn insert_samples(&self, samples: &[(SandboxId, Sample)]) -> Result<(), StoreError> {
        for chunk in samples.chunks(ROWS_PER_STATEMENT) {
            let mut query = QueryBuilder::new("INSERT INTO sandbox_metrics (");
            query.push(COLUMNS).push(") ");
            query.push_values(chunk, |mut values, (sandbox, sample)| {
                values.push_bind(sandbox.as_str()).push_bind(sample.at.0);
                values.push_bind(sample.cpu_count).push_bind(sample.cpu_percent);
                values.push_bind(sample.mem_used).push_bind(sample.mem_total).push_bind(sample.mem_cache);
                values.push_bind(sample.disk_used).push_bind(sample.disk_total);
            });
            // If there are two samples with the same time, the first is kept.
            query.push(" ON CONFLICT DO NOTHING");
            query.build().execute(&self.write).await.map_err(StoreError::doing("record resource use"))?;
        }
        Ok(())
    }

    /// The newest `limit` samples between two times, oldest first.
    pub async fn list_samples(
        &self,
        sandbox: &SandboxId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<Sample>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM sandbox_metrics WHERE sandbox = ").push_bind(sandbox.as_str());
        query.push(" AND at BETWEEN ").push_bind(from.0).push(" AND ").push_bind(to.0);
        query.push(" ORDER BY at DESC LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read resource use"))?;
        Ok(rows.iter().rev().map(read).collect())
    }
}

fn read(row: &Row) -> Sample {
    Sample {
        at: Timestamp(row.get(1)),
        cpu_count: row.get(2),
        cpu_percent: row.get(3),
        mem_used: row.get(4),
        mem_total: row.get(5),
        mem_cache: row.get(6),
        disk_used: row.get(7),
        disk_total: row.get(8),
    }
}
