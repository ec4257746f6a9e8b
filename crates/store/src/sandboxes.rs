//! The rows of sandboxes. The row of an ended sandbox is kept for a while, without its tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use isopod_wire::node::{Incarnation, Secret};
use isopod_wire::{ExecutionId, Limits, SandboxId};
use serde::de::DeserializeOwned;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, query};
use crate::{NetworkSettings, State, VolumeMount};

/// Everything that the store knows about a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxRow {
    pub id: SandboxId,
    pub team: TeamId,
    pub template: String,
    /// The name of the template, if it is not its id.
    pub alias: Option<String>,
    pub state: State,
    pub execution: Option<ExecutionId>,
    pub created_at: Timestamp,
    pub started_at: Timestamp,
    pub ends_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// The last requested timeout. A sandbox that traffic wakes up gets it too.
    pub timeout: Duration,
    pub auto_pause: bool,
    pub auto_pause_memory: bool,
    pub auto_resume: bool,
    pub allow_internet: Option<bool>,
    pub network: NetworkSettings,
    pub metadata: BTreeMap<String, String>,
    pub limits: Limits,
    pub access_token: Option<Secret>,
    pub traffic_token: Option<Secret>,
    pub session_key: Option<String>,
    pub volume_mounts: Vec<VolumeMount>,
}

/// Why a new sandbox could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum InsertError {
    /// Another live sandbox has the session.
    #[error("the session already has a live sandbox")]
    SessionTaken,
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, team, template, state, pause_mode, end_reason, execution, created_at, started_at, ends_at, \
     ended_at, timeout_seconds, auto_pause, auto_pause_memory, auto_resume, allow_internet, network, metadata, limits, \
     access_token, traffic_token, session_key, alias, volume_mounts";

impl SandboxRow {
    /// The incarnation that the row describes, if there is one.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.execution.clone().map(|execution| Incarnation { sandbox: self.id.clone(), execution })
    }
}

impl Store {
    /// Records that a sandbox is going to be created.
    pub async fn insert_sandbox(&self, row: &SandboxRow) -> Result<(), InsertError> {
        let mut query = QueryBuilder::new("INSERT INTO sandboxes (");
        query.push(COLUMNS).push(", server) VALUES (");
        let (state, mode, ending) = row.state.columns();
        let mut values = query.separated(", ");
        values.push_bind(row.id.as_str()).push_bind(&row.team.0).push_bind(&row.template);
        values.push_bind(state).push_bind(mode).push_bind(ending);
        values.push_bind(row.execution.as_ref().map(ExecutionId::as_str));
        values.push_bind(row.created_at.0).push_bind(row.started_at.0).push_bind(row.ends_at.0);
        values.push_bind(row.ended_at.map(|at| at.0)).push_bind(seconds(row.timeout));
        values.push_bind(row.auto_pause).push_bind(row.auto_pause_memory).push_bind(row.auto_resume);
        values.push_bind(row.allow_internet);
        values.push_bind(json(&row.network)).push_bind(json(&row.metadata)).push_bind(json(&row.limits));
        values.push_bind(row.access_token.as_ref().map(|token| &token.0));
        values.push_bind(row.traffic_token.as_ref().map(|token| &token.0));
        values.push_bind(row.session_key.as_ref()).push_bind(row.alias.as_ref());
        values.push_bind(json(&row.volume_mounts)).push_bind(self.server());
        query.push(")");
        match query.build().execute(&self.write).await {
            Ok(_) => Ok(()),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() && row.session_key.is_some() => {
                Err(InsertError::SessionTaken)
            }
            Err(source) => Err(StoreError::Statement { what: "record a new sandbox", source }.into()),
        }
    }

    /// Records everything about a sandbox that may change. Deletes the tokens of an ended one.
    pub async fn save_sandbox(&self, row: &SandboxRow) -> Result<(), StoreError> {
        let (state, mode, ending) = row.state.columns();
        let gone = matches!(row.state, State::Ended(_));
        query(
            "UPDATE sandboxes SET state = ?, pause_mode = ?, end_reason = ?, execution = ?, started_at = ?, \
             ends_at = ?, ended_at = ?, timeout_seconds = ?, auto_pause = ?, allow_internet = ?, network = ?, \
             access_token = CASE WHEN ? = 1 THEN NULL ELSE access_token END, \
             traffic_token = CASE WHEN ? = 1 THEN NULL ELSE traffic_token END WHERE id = ?",
        )
        .bind(state)
        .bind(mode)
        .bind(ending)
        .bind(row.execution.as_ref().map(ExecutionId::as_str))
        .bind(row.started_at.0)
        .bind(row.ends_at.0)
        .bind(row.ended_at.map(|at| at.0))
        .bind(seconds(row.timeout))
        .bind(row.auto_pause)
        .bind(row.allow_internet)
        .bind(json(&row.network))
        .bind(gone)
        .bind(gone)
        .bind(row.id.as_str())
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a sandbox"))?;
        Ok(())
    }

    /// Replaces the reason `lost` after the node has found out why the sandbox ended.
    pub async fn explain_loss(&self, incarnation: &Incarnation, reason: &'static str) -> Result<(), StoreError> {
        query("UPDATE sandboxes SET end_reason = ? WHERE id = ? AND execution = ? AND end_reason = 'lost'")
            .bind(reason)
            .bind(incarnation.sandbox.as_str())
            .bind(incarnation.execution.as_str())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record why a sandbox ended"))?;
        Ok(())
    }

    /// All sandboxes of this server that have not ended.
    pub async fn live_sandboxes(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let mut query = select();
        query.push("state <> 'ended' AND server = ").push_bind(self.server()).push(" ORDER BY created_at, id");
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read the live sandboxes"))?;
        rows.iter().map(read_row).collect()
    }

    /// The team's sandbox with this id, even if it has ended.
    pub async fn find_sandbox(&self, team: &TeamId, id: &SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        let mut query = select();
        query.push("id = ").push_bind(id.as_str()).push(" AND team = ").push_bind(&team.0);
        let row = query.build().fetch_optional(&self.read).await.map_err(StoreError::doing("read a sandbox"))?;
        row.as_ref().map(read_row).transpose()
    }

    /// The live sandbox of a session. Read through the writer, because it may have been recorded a moment ago.
    pub async fn find_session(&self, team: &TeamId, key: &str) -> Result<Option<SandboxRow>, StoreError> {
        let mut query = select();
        query.push("state <> 'ended' AND team = ").push_bind(&team.0).push(" AND session_key = ").push_bind(key);
        let row = query.build().fetch_optional(&self.write).await.map_err(StoreError::doing("read a session"))?;
        let Some(row) = row else { return Ok(None) };
        self.check_server(row.get(24)).await?;
        read_row(&row).map(Some)
    }
}

fn select() -> QueryBuilder<'static> {
    let mut query = QueryBuilder::new("SELECT ");
    query.push(COLUMNS).push(", server FROM sandboxes WHERE ");
    query
}

fn read_row(row: &Row) -> Result<SandboxRow, StoreError> {
    let time = |index: usize| Timestamp(row.get(index));
    let secret = |index: usize| row.get::<Option<String>>(index).map(Secret);
    let (state, mode, ending): (&str, Option<&str>, Option<&str>) = (row.get(3), row.get(4), row.get(5));
    Ok(SandboxRow {
        id: parse("a sandbox id", row.get(0))?,
        team: TeamId(row.get(1)),
        template: row.get(2),
        state: State::from_columns(state, mode, ending).ok_or_else(|| corrupt("a state", state))?,
        execution: row.get::<Option<&str>>(6).map(|text| parse("an execution id", text)).transpose()?,
        created_at: time(7),
        started_at: time(8),
        ends_at: time(9),
        ended_at: row.get::<Option<i64>>(10).map(Timestamp),
        timeout: Duration::from_secs(row.get::<i64>(11).unsigned_abs()),
        auto_pause: row.get(12),
        auto_pause_memory: row.get(13),
        auto_resume: row.get(14),
        allow_internet: row.get(15),
        network: read_json("network settings", row.get(16))?,
        metadata: read_json("metadata", row.get(17))?,
        limits: read_json("limits", row.get(18))?,
        access_token: secret(19),
        traffic_token: secret(20),
        session_key: row.get(21),
        alias: row.get(22),
        volume_mounts: read_json("volume mounts", row.get(23))?,
    })
}

fn parse<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| corrupt(what, text))
}

fn read_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| corrupt(what, text))
}

fn corrupt(what: &'static str, value: &str) -> StoreError {
    StoreError::Corrupt { what, value: value.to_owned() }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain structs and maps of strings always serialize to JSON")
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
