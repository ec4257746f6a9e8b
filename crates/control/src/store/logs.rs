//! Log lines of sandboxes.

use std::collections::BTreeMap;

use isopod_wire::SandboxId;
use serde::Serialize;
use sqlx::{QueryBuilder, Row as _, Sqlite};

use super::{Store, StoreError};
use crate::clock::Timestamp;

/// One line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LogLine {
    pub(crate) timestamp: Timestamp,
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<String, String>,
}

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Which lines to read.
#[derive(Clone, Debug)]
pub(crate) struct LogQuery {
    pub(crate) from: Option<Timestamp>,
    pub(crate) direction: Direction,
    pub(crate) limit: u32,
    pub(crate) least: Level,
    pub(crate) search: Option<String>,
}

/// Forward in time or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl Level {
    pub(crate) const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.text() == text)
    }
}

impl Store {
    pub(crate) async fn insert_log(&self, sandbox: &SandboxId, line: &LogLine) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO sandbox_logs (sandbox, at, level, message, fields) VALUES (?, ?, ?, ?, ?)")
            .bind(sandbox.as_str())
            .bind(line.timestamp.0)
            .bind(line.level.text())
            .bind(&line.message)
            .bind(serde_json::to_string(&line.fields).expect("a string map always has a JSON form"))
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record a log line"))?;
        Ok(())
    }

    pub(crate) async fn list_logs(&self, sandbox: &SandboxId, wanted: &LogQuery) -> Result<Vec<LogLine>, StoreError> {
        let (comparison, direction) = match wanted.direction {
            Direction::Forward => (">=", "ASC"),
            Direction::Backward => ("<=", "DESC"),
        };
        let mut query = QueryBuilder::<Sqlite>::new("SELECT at, level, message, fields FROM sandbox_logs WHERE ");
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
        if let Some(search) = &wanted.search {
            query.push(" AND instr(message, ").push_bind(search).push(") > 0");
        }
        query.push(" ORDER BY at ").push(direction).push(", seq ").push(direction);
        query.push(" LIMIT ").push_bind(wanted.limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read logs"))?;
        Ok(rows
            .iter()
            .map(|row| LogLine {
                timestamp: Timestamp(row.get(0)),
                level: Level::parse(row.get(1)).unwrap_or(Level::Info),
                message: row.get(2),
                fields: serde_json::from_str(row.get(3)).unwrap_or_default(),
            })
            .collect())
    }
}
