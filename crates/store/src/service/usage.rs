//! The total resource use of sandboxes: CPU time, memory over time, bytes in and out. A reading contains the totals of
//! one execution, so recording the same reading twice adds nothing.

use isopod_wire::node::Usage;

use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, Transaction, query};
use crate::{Store, StoreError, TeamId};

/// The total use of one execution of a sandbox up to now.
#[derive(Clone, Debug)]
pub struct Reading {
    pub sandbox: String,
    pub execution: String,
    pub cpu_micros: i64,
    pub memory_mib: i64,
    pub at: Timestamp,
}

/// How a report is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageGroup {
    Task,
    Agent,
    Sandbox,
    /// A session of E2B's API, which is one run of a workflow.
    Run,
}

/// One line of a report.
#[derive(Clone, Debug)]
pub struct UsageRow {
    pub name: Option<String>,
    pub sandboxes: i64,
    pub cpu_micros: i64,
    pub memory_mib_ms: i64,
    pub bytes_in: i64,
    pub bytes_out: i64,
}

impl Reading {
    pub fn new(sandbox: &str, execution: &str, usage: &Usage) -> Self {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Self {
            sandbox: sandbox.to_owned(),
            execution: execution.to_owned(),
            cpu_micros: number(usage.cpu_micros),
            memory_mib: number(usage.memory >> 20),
            at: Timestamp::now(),
        }
    }
}

pub(super) async fn add_bytes(
    connection: &mut Transaction,
    sandbox: &str,
    bytes_in: i64,
    bytes_out: i64,
) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO sandbox_usage (sandbox, execution, cpu_seen, cpu_micros, memory_mib_ms, bytes_in, bytes_out, \
         sampled_at) VALUES (?, '', 0, 0, 0, ?, ?, ?) ON CONFLICT (sandbox) DO UPDATE SET \
         bytes_in = sandbox_usage.bytes_in + excluded.bytes_in, \
         bytes_out = sandbox_usage.bytes_out + excluded.bytes_out",
    )
    .bind(sandbox)
    .bind(bytes_in)
    .bind(bytes_out)
    .bind(Timestamp::now().0)
    .execute(connection)
    .await
    .map(drop)
}

/// A row has eight values, and SQLite takes at most 32,766 in one statement.
const ROWS_PER_STATEMENT: usize = 500;

impl Store {
    pub async fn add_usage(&self, readings: &[Reading]) -> Result<(), StoreError> {
        for chunk in readings.chunks(ROWS_PER_STATEMENT) {
            let mut query = QueryBuilder::new(
                "INSERT INTO sandbox_usage (sandbox, execution, cpu_seen, cpu_micros, memory_mib_ms, bytes_in, \
                 bytes_out, sampled_at) ",
            );
            query.push_values(chunk, |mut values, reading| {
                values.push_bind(&reading.sandbox).push_bind(&reading.execution);
                values.push_bind(reading.cpu_micros).push_bind(reading.cpu_micros);
                // The current memory use. It becomes memory over time below, as soon as there is a time span.
                values.push_bind(reading.memory_mib);
                values.push("0").push("0").push_bind(reading.at.0);
            });
            // Add the difference to the previous reading of the same execution, or the whole value if it is another
            // execution. A gap of more than a minute is a pause, in which no memory was used.
            query.push(
                " ON CONFLICT (sandbox) DO UPDATE SET \
                 cpu_micros = sandbox_usage.cpu_micros + CASE \
                   WHEN sandbox_usage.execution <> excluded.execution THEN excluded.cpu_seen \
                   WHEN excluded.cpu_seen > sandbox_usage.cpu_seen THEN excluded.cpu_seen - sandbox_usage.cpu_seen \
                   ELSE 0 END, \
                 memory_mib_ms = sandbox_usage.memory_mib_ms + CASE \
                   WHEN excluded.sampled_at - sandbox_usage.sampled_at BETWEEN 0 AND 60000 \
                   THEN excluded.memory_mib_ms * (excluded.sampled_at - sandbox_usage.sampled_at) ELSE 0 END, \
                 execution = excluded.execution, cpu_seen = excluded.cpu_seen, sampled_at = excluded.sampled_at",
            );
            query.build().execute(&self.write).await.map_err(StoreError::doing("record resource use"))?;
        }
        Ok(())
    }

    /// The use by sandboxes that were created in this period, most CPU time first.
    pub async fn report_usage(
        &self,
        team: Option<&TeamId>,
        agent: Option<&str>,
        group: UsageGroup,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<Vec<UsageRow>, StoreError> {
        let (column, table, id) = match group {
            UsageGroup::Task => ("s.task", "service_sandboxes", "s.sandbox"),
            UsageGroup::Agent => ("s.agent", "service_sandboxes", "s.sandbox"),
            UsageGroup::Sandbox => ("s.id", "service_sandboxes", "s.sandbox"),
            UsageGroup::Run => ("s.session_key", "sandboxes", "s.id"),
        };
        let mut query = QueryBuilder::new("SELECT ");
        query.push(column).push(
            ", count(*), CAST(coalesce(sum(u.cpu_micros), 0) AS BIGINT), CAST(coalesce(sum(u.memory_mib_ms), 0) AS BIGINT), \
             CAST(coalesce(sum(u.bytes_in), 0) AS BIGINT), CAST(coalesce(sum(u.bytes_out), 0) AS BIGINT) FROM ",
        );
        query.push(table).push(" s LEFT JOIN sandbox_usage u ON u.sandbox = ").push(id);
        query.push(" WHERE s.created_at >= ").push_bind(from.0).push(" AND s.created_at <= ").push_bind(to.0);
        if let Some(team) = team {
            query.push(" AND s.team = ").push_bind(&team.0);
        }
        if let (Some(agent), true) = (agent, group != UsageGroup::Run) {
            query.push(" AND s.agent = ").push_bind(agent);
        }
        if group == UsageGroup::Run {
            query.push(" AND s.session_key IS NOT NULL");
        }
        query.push(" GROUP BY ").push(column).push(" ORDER BY 3 DESC LIMIT 1000");
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("report resource use"))?;
        Ok(rows.iter().map(read).collect())
    }
}

fn read(row: &Row) -> UsageRow {
    UsageRow {
        name: row.get(0),
        sandboxes: row.get(1),
        cpu_micros: row.get(2),
        memory_mib_ms: row.get(3),
        bytes_in: row.get(4),
        bytes_out: row.get(5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_reading_twice_adds_nothing_and_a_new_execution_adds_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let reading = |execution: &str, cpu_micros, at| Reading {
            sandbox: "s".to_owned(),
            execution: execution.to_owned(),
            cpu_micros,
            memory_mib: 10,
            at: Timestamp(at),
        };
        for (execution, cpu, at) in [("x", 100, 1000), ("x", 150, 2000), ("x", 150, 2000), ("y", 40, 500_000)] {
            store.add_usage(&[reading(execution, cpu, at)]).await.unwrap();
        }
        let row = query("SELECT cpu_micros, memory_mib_ms FROM sandbox_usage").fetch_one(&store.read).await;
        let row = row.unwrap();
        // The first reading has no time span, so its memory counts for one millisecond.
        assert_eq!((row.get::<i64>(0), row.get::<i64>(1)), (190, 10 + 10 * 1000));
    }
}
