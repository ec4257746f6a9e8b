//! The log lines of sandboxes. A row may contain several lines with the same time; readers get them one by one.

use std::collections::BTreeMap;

use isopod_wire::SandboxId;
use serde::Serialize;
use sqlx::AssertSqlSafe;
use utoipa::ToSchema;

use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, query};

/// One line.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LogEntry)]
pub struct LogLine {
    pub timestamp: Timestamp,
    pub level: Level,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = LogLevel)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Which lines to read.
#[derive(Clone, Debug)]
pub struct LogQuery {
    pub from: Option<Timestamp>,
    pub direction: Direction,
    pub limit: u32,
    pub least: Level,
    pub search: Option<String>,
}

/// The direction in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// The size of a row besides its message.
const ROW_COST: usize = 120;
/// The maximum size of one response.
const MAX_BYTES: usize = 4 << 20;

impl Level {
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    pub fn text(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.text() == text)
    }
}

impl Store {
    pub async fn insert_log(&self, sandbox: &SandboxId, line: &LogLine) -> Result<(), StoreError> {
        query("INSERT INTO sandbox_logs (sandbox, at, level, message, fields) VALUES (?, ?, ?, ?, ?)")
            .bind(sandbox.as_str())
            .bind(line.timestamp.0)
            .bind(line.level.text())
            .bind(&line.message)
            .bind(line.fields_json())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record a log line"))?;
        Ok(())
    }

    pub async fn list_logs(&self, sandbox: &SandboxId, wanted: &LogQuery) -> Result<Vec<LogLine>, StoreError> {
        let (comparison, direction) = match wanted.direction {
            Direction::Forward => (">=", "ASC"),
            Direction::Backward => ("<=", "DESC"),
        };
        let mut query = QueryBuilder::new("SELECT at, level, message, fields FROM sandbox_logs WHERE ");
        query.push("sandbox = ").push_bind(sandbox.as_str());
        if let Some(from) = wanted.from {
            query.push(" AND at ").push(comparison).push_bind(from.0);
        }
        query.push(" AND level IN (");
        let mut levels = query.separated(", ");
        for level in Level::ALL.into_iter().filter(|level| *level >= wanted.least) {
            levels.push_bind(level.text());
        }
        query.push(")");
        if let Some(search) = wanted.search.as_ref().filter(|search| !search.is_empty()) {
            query.push(" AND replace(message, ").push_bind(search).push(", '') <> message");
        }
        query.push(" ORDER BY at ").push(direction).push(", seq ").push(direction);
        query.push(" LIMIT ").push_bind(wanted.limit);
        let (limit, mut bytes, mut lines) = (wanted.limit as usize, 0, Vec::new());
        // What exceeds the limit is left for the next response. There are few rows, but each may be long.
        let take = |row: &Row| {
            let row = read(row);
            bytes += row.cost();
            lines.extend(row.into_lines(wanted));
            lines.len() < limit && bytes < MAX_BYTES
        };
        query.build().fetch_while(&self.read, take).await.map_err(StoreError::doing("read logs"))?;
        lines.truncate(limit);
        Ok(lines)
    }

    /// Removes the oldest lines of a sandbox until at most `keep` bytes are left.
    pub async fn cut_logs(&self, sandbox: &SandboxId, keep: usize) -> Result<(), StoreError> {
        let size = format!("SUM(length(message) + {ROW_COST}) OVER (ORDER BY at DESC, seq DESC)");
        let sizes = format!("SELECT seq, {size} AS size FROM sandbox_logs WHERE sandbox = ?");
        let statement =
            format!("DELETE FROM sandbox_logs WHERE seq IN (SELECT seq FROM ({sizes}) AS sizes WHERE size > ?)");
        query(AssertSqlSafe(statement))
            .bind(sandbox.as_str())
            .bind(i64::try_from(keep).unwrap_or(i64::MAX))
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("shorten a log"))?;
        Ok(())
    }
}

impl LogLine {
    pub(super) fn fields_json(&self) -> String {
        serde_json::to_string(&self.fields).expect("a map of strings always serializes to JSON")
    }

    /// The approximate size in the store.
    pub fn cost(&self) -> usize {
        self.message.len() + ROW_COST
    }

    /// The requested lines of this row, in the requested order.
    fn into_lines(self, wanted: &LogQuery) -> Vec<Self> {
        let is_wanted = |line: &str| wanted.search.as_ref().is_none_or(|search| line.contains(search.as_str()));
        let mut lines: Vec<Self> = self
            .message
            .split('\n')
            .filter(|line| is_wanted(line))
            .map(|line| Self { message: line.to_owned(), fields: self.fields.clone(), ..self })
            .collect();
        if wanted.direction == Direction::Backward {
            lines.reverse();
        }
        lines
    }
}

fn read(row: &Row) -> LogLine {
    LogLine {
        timestamp: Timestamp(row.get(0)),
        level: Level::parse(row.get(1)).unwrap_or(Level::Info),
        message: row.get(2),
        fields: serde_json::from_str(row.get(3)).unwrap_or_default(),
    }
}
