//! The output of builds, one line per row. Lines are numbered from zero in each build, and clients ask for lines from a
//! number on.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Direction, Level, Store, StoreError};
use crate::clock::Timestamp;
use crate::database::QueryBuilder;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = BuildLogEntry)]
pub struct BuildLine {
    #[serde(rename = "timestamp")]
    pub at: Timestamp,
    pub level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub step: Option<String>,
    pub message: String,
}

/// Which lines to read.
#[derive(Clone, Copy, Debug)]
pub struct BuildLogQuery {
    /// The number of matching lines to skip.
    pub offset: i64,
    pub limit: i64,
    pub least: Level,
    /// Only lines at or after this time, or at or before it when reading backward.
    pub from: Option<Timestamp>,
    pub direction: Direction,
}

impl Store {
    /// Adds lines. The first one gets the number `first`.
    pub async fn insert_build_lines(&self, build: &str, first: i64, lines: &[BuildLine]) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut query = QueryBuilder::new("INSERT INTO template_build_logs (build, seq, at, level, step, message) ");
        query.push_values((first..).zip(lines), |mut row, (seq, line)| {
            row.push_bind(build).push_bind(seq).push_bind(line.at.0).push_bind(line.level.text());
            row.push_bind(line.step.as_ref()).push_bind(&line.message);
        });
        query.build().execute(&self.write).await.map_err(StoreError::doing("record a build's output"))?;
        Ok(())
    }

    pub async fn list_build_lines(&self, build: &str, wanted: BuildLogQuery) -> Result<Vec<BuildLine>, StoreError> {
        let mut query = QueryBuilder::new("SELECT at, level, step, message FROM template_build_logs WHERE build = ");
        query.push_bind(build).push(" AND level IN (");
        let mut levels = query.separated(", ");
        for level in Level::ALL.into_iter().filter(|level| *level >= wanted.least) {
            levels.push_bind(level.text());
        }
        query.push(")");
        let (compare, order) = match wanted.direction {
            Direction::Forward => (" AND at >= ", " ORDER BY seq"),
            Direction::Backward => (" AND at <= ", " ORDER BY seq DESC"),
        };
        if let Some(from) = wanted.from {
            query.push(compare).push_bind(from.0);
        }
        query.push(order).push(" LIMIT ").push_bind(wanted.limit).push(" OFFSET ").push_bind(wanted.offset);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read a build's output"))?;
        Ok(rows
            .iter()
            .map(|row| BuildLine {
                at: Timestamp(row.get(0)),
                level: Level::parse(row.get(1)).unwrap_or(Level::Info),
                step: row.get(2),
                message: row.get(3),
            })
            .collect())
    }
}
