//! The output of processes: log lines, and how far the output was read from the guest. Both are written in one
//! transaction, so that a crash neither repeats nor loses lines.

use isopod_wire::node::Incarnation;

use super::{LogLine, Store, StoreError};
use crate::database::{QueryBuilder, query};

/// How far the output of an incarnation was read.
#[derive(Clone, Copy, Debug)]
pub struct OutputPosition<'a> {
    pub incarnation: &'a Incarnation,
    pub position: u64,
}

/// SQLite takes at most 32,766 values in one statement, and a row has five.
const ROWS_PER_STATEMENT: usize = 1000;

impl Store {
    /// The position at which to continue reading. It is zero for an incarnation whose output was never read.
    pub async fn output_position(&self, incarnation: &Incarnation) -> Result<u64, StoreError> {
        let row = query("SELECT position FROM output_positions WHERE sandbox = ? AND execution = ?")
            .bind(incarnation.sandbox.as_str())
            .bind(incarnation.execution.as_str())
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("read the output position"))?;
        Ok(row.map_or(0, |row| u64::try_from(row.get::<i64>(0)).unwrap_or(0)))
    }

    /// Records lines and the position after them.
    pub async fn insert_output(&self, reached: &OutputPosition<'_>, lines: &[LogLine]) -> Result<(), StoreError> {
        self.try_insert_output(reached, lines).await.map_err(StoreError::doing("record output"))
    }

    async fn try_insert_output(&self, reached: &OutputPosition<'_>, lines: &[LogLine]) -> Result<(), sqlx::Error> {
        let sandbox = reached.incarnation.sandbox.as_str();
        let mut transaction = self.write.begin().await?;
        for chunk in lines.chunks(ROWS_PER_STATEMENT) {
            let mut query = QueryBuilder::new("INSERT INTO sandbox_logs (sandbox, at, level, message, fields) ");
            query.push_values(chunk, |mut values, line| {
                values.push_bind(sandbox).push_bind(line.timestamp.0).push_bind(line.level.text());
                values.push_bind(&line.message).push_bind(line.fields_json());
            });
            query.build().execute(&mut transaction).await?;
        }
        query(
            "INSERT INTO output_positions (sandbox, execution, position) VALUES (?, ?, ?) ON CONFLICT (sandbox) \
             DO UPDATE SET execution = excluded.execution, position = excluded.position",
        )
        .bind(sandbox)
        .bind(reached.incarnation.execution.as_str())
        .bind(i64::try_from(reached.position).unwrap_or(i64::MAX))
        .execute(&mut transaction)
        .await?;
        transaction.commit().await
    }
}
