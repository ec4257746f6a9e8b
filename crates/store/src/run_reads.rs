//! Reads the runs of workflows.

use serde::de::DeserializeOwned;

use super::{InvocationRow, NodeRow, RunRow, RunStatus, Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, query};
use crate::{EventKind, NodeState, RunEvent, RunId};

/// Which runs to list, newest first.
#[derive(Clone, Debug)]
pub struct RunQuery {
    pub team: TeamId,
    pub status: Option<RunStatus>,
    pub limit: u32,
    pub offset: u32,
}

const COLUMNS: &str = "id, team, workflow, name, client, status, reason, error, paused, settings, tokens_used, \
                       last_seq, created_at, deadline_at, time_left_ms, approval_until, ended_at";

impl Store {
    pub async fn find_run(&self, id: &RunId) -> Result<Option<RunRow>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM runs WHERE id = ").push_bind(id.as_str());
        let row = query.build().fetch_optional(&self.read).await.map_err(StoreError::doing("read a run"))?;
        row.as_ref().map(read_run).transpose()
    }

    pub async fn list_runs(&self, wanted: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM runs WHERE team = ").push_bind(&wanted.team.0);
        if let Some(status) = wanted.status {
            query.push(" AND status = ").push_bind(status.text());
        }
        query.push(" ORDER BY created_at DESC, id LIMIT ").push_bind(wanted.limit);
        query.push(" OFFSET ").push_bind(wanted.offset);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("list runs"))?;
        rows.iter().map(read_run).collect()
    }

    /// The runs of this server that have not ended.
    pub async fn live_runs(&self) -> Result<Vec<RunId>, StoreError> {
        let rows = query("SELECT id FROM runs WHERE ended_at IS NULL AND server = ? ORDER BY created_at, id")
            .bind(self.server())
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("read the live runs"))?;
        rows.iter().map(|row| read_id(row.get(0))).collect()
    }

    /// The nodes of a run, in order.
    pub async fn run_nodes(&self, id: &RunId) -> Result<Vec<NodeRow>, StoreError> {
        let rows = query(
            "SELECT spec, place, state, attempts, next_at, approved, output, error, started_at, ended_at \
             FROM run_nodes WHERE run = ? ORDER BY place, id",
        )
        .bind(id.as_str())
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("read the nodes of a run"))?;
        rows.iter().map(read_node).collect()
    }

    pub async fn run_invocations(&self, id: &RunId) -> Result<Vec<InvocationRow>, StoreError> {
        let rows = query("SELECT id, number, node, body FROM run_invocations WHERE run = ? ORDER BY number")
            .bind(id.as_str())
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("read the invocations of a run"))?;
        let read = |row: &Row| {
            Ok(InvocationRow {
                id: row.get(0),
                number: row.get(1),
                node: row.get(2),
                body: parse("an invocation", row.get(3))?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// The events after the one with this number.
    pub async fn run_events(&self, id: &RunId, after: i64, limit: u32) -> Result<Vec<RunEvent>, StoreError> {
        let rows =
            query("SELECT seq, at, kind, node, data FROM run_events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?")
                .bind(id.as_str())
                .bind(after)
                .bind(limit)
                .fetch_all(&self.read)
                .await
                .map_err(StoreError::doing("read the events of a run"))?;
        rows.iter().map(read_event).collect()
    }
}

fn read_run(row: &Row) -> Result<RunRow, StoreError> {
    let status: &str = row.get(5);
    Ok(RunRow {
        id: read_id(row.get(0))?,
        team: TeamId(row.get(1)),
        workflow: row.get(2),
        name: row.get(3),
        client: row.get(4),
        status: RunStatus::parse(status)
            .ok_or_else(|| StoreError::Corrupt { what: "a run's status", value: status.to_owned() })?,
        reason: row.get(6),
        error: row.get(7),
        paused: row.get(8),
        settings: parse("a run's settings", row.get(9))?,
        tokens_used: u64::try_from(row.get::<i64>(10)).unwrap_or(0),
        last_seq: row.get(11),
        created_at: Timestamp(row.get(12)),
        deadline_at: row.get::<Option<i64>>(13).map(Timestamp),
        time_left_ms: row.get(14),
        approval_until: row.get::<Option<i64>>(15).map(Timestamp),
        ended_at: row.get::<Option<i64>>(16).map(Timestamp),
    })
}

fn read_node(row: &Row) -> Result<NodeRow, StoreError> {
    let state: &str = row.get(2);
    Ok(NodeRow {
        spec: parse("a node", row.get(0))?,
        place: row.get(1),
        state: NodeState::parse(state)
            .ok_or_else(|| StoreError::Corrupt { what: "a node's state", value: state.to_owned() })?,
        attempts: row.get(3),
        next_at: row.get::<Option<i64>>(4).map(Timestamp),
        approved: row.get(5),
        output: row.get::<Option<&str>>(6).map(|text| parse("a node's output", text)).transpose()?,
        error: row.get(7),
        started_at: row.get::<Option<i64>>(8).map(Timestamp),
        ended_at: row.get::<Option<i64>>(9).map(Timestamp),
    })
}

fn read_event(row: &Row) -> Result<RunEvent, StoreError> {
    let kind: &str = row.get(2);
    Ok(RunEvent {
        seq: row.get(0),
        at: Timestamp(row.get(1)),
        kind: EventKind::parse(kind)
            .ok_or_else(|| StoreError::Corrupt { what: "an event of a run", value: kind.to_owned() })?,
        node: row.get(3),
        data: parse("an event of a run", row.get(4))?,
    })
}

fn read_id(text: &str) -> Result<RunId, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt { what: "a run's id", value: text.to_owned() })
}

fn parse<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt { what, value: text.chars().take(200).collect() })
}
