//! Writes the runs of workflows. Each turn of a run is one transaction. The end of a run is written together with the
//! intent to clean it up.

use serde_json::Value;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{Transaction, query};
use crate::run_services::{AgentService, write_service};
use crate::{NodeSpec, NodeState, RunEvent, RunId, RunSettings};

/// The status of a run, with the names that its API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    Idle,
    Running,
    Completed,
    Failed,
    AwaitingApproval,
}

impl RunStatus {
    const ALL: [Self; 5] = [Self::Idle, Self::Running, Self::Completed, Self::Failed, Self::AwaitingApproval];

    pub fn text(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::AwaitingApproval => "awaitingapproval",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.text() == text)
    }

    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// A run without its nodes.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub id: RunId,
    pub team: TeamId,
    pub workflow: String,
    pub name: String,
    pub client: String,
    pub status: RunStatus,
    /// Why the run ended.
    pub reason: Option<String>,
    pub error: Option<String>,
    /// Why nothing starts at the moment.
    pub paused: Option<String>,
    pub settings: RunSettings,
    pub tokens_used: u64,
    pub last_seq: i64,
    pub created_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    /// The remaining time of the run while its clock is stopped.
    pub time_left_ms: Option<i64>,
    pub approval_until: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// A node of a run.
#[derive(Clone, Debug)]
pub struct NodeRow {
    pub spec: NodeSpec,
    pub place: i64,
    pub state: NodeState,
    pub attempts: u32,
    /// The time of the next attempt, after a failed one.
    pub next_at: Option<Timestamp>,
    pub approved: bool,
    pub output: Option<Value>,
    pub error: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// One attempt at a node, in the form that its API returns.
#[derive(Clone, Debug)]
pub struct InvocationRow {
    pub id: String,
    pub number: i64,
    pub node: String,
    pub body: Value,
}

/// Everything that one turn of a run has changed.
#[derive(Clone, Debug)]
pub struct RunTurn {
    pub run: RunRow,
    pub nodes: Vec<NodeRow>,
    pub removed: Vec<String>,
    pub invocations: Vec<InvocationRow>,
    pub events: Vec<RunEvent>,
    /// Agent services that the run is about to call, or must tell of its end.
    pub services: Vec<AgentService>,
}

impl Store {
    /// Records a turn, including the first one. When a run ends, its cleanup intent is written, once.
    pub async fn commit_turn(&self, turn: &RunTurn) -> Result<(), StoreError> {
        let failed = StoreError::doing("record a run");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        write_turn(&mut transaction, turn, self.server()).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)
    }
}

async fn write_turn(transaction: &mut Transaction, turn: &RunTurn, server: &str) -> Result<(), sqlx::Error> {
    write_run(transaction, &turn.run, server).await?;
    for id in &turn.removed {
        query("DELETE FROM run_nodes WHERE run = ? AND id = ?")
            .bind(turn.run.id.as_str())
            .bind(id)
            .execute(&mut *transaction)
            .await?;
    }
    for node in &turn.nodes {
        write_node(transaction, &turn.run.id, node).await?;
    }
    for invocation in &turn.invocations {
        query(
            "INSERT INTO run_invocations (run, id, number, node, body) VALUES (?, ?, ?, ?, ?) \
             ON CONFLICT (run, id) DO UPDATE SET body = excluded.body",
        )
        .bind(turn.run.id.as_str())
        .bind(&invocation.id)
        .bind(invocation.number)
        .bind(&invocation.node)
        .bind(invocation.body.to_string())
        .execute(&mut *transaction)
        .await?;
    }
    for event in &turn.events {
        query("INSERT INTO run_events (run, seq, at, kind, node, data) VALUES (?, ?, ?, ?, ?, ?)")
            .bind(turn.run.id.as_str())
            .bind(event.seq)
            .bind(event.at.0)
            .bind(event.kind.text())
            .bind(&event.node)
            .bind(event.data.to_string())
            .execute(&mut *transaction)
            .await?;
    }
    for service in &turn.services {
        write_service(transaction, &turn.run.id, service).await?;
    }
    if turn.run.status.is_terminal() {
        write_cleanup_intent(transaction, &turn.run).await?;
    }
    Ok(())
}

async fn write_run(transaction: &mut Transaction, run: &RunRow, server: &str) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO runs (id, team, workflow, name, client, status, reason, error, paused, settings, tokens_used, \
         last_seq, created_at, deadline_at, time_left_ms, approval_until, ended_at, server) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET \
         status = excluded.status, reason = excluded.reason, error = excluded.error, paused = excluded.paused, \
         tokens_used = excluded.tokens_used, last_seq = excluded.last_seq, deadline_at = excluded.deadline_at, \
         time_left_ms = excluded.time_left_ms, approval_until = excluded.approval_until, ended_at = excluded.ended_at",
    )
    .bind(run.id.as_str())
    .bind(&run.team.0)
    .bind(&run.workflow)
    .bind(&run.name)
    .bind(&run.client)
    .bind(run.status.text())
    .bind(&run.reason)
    .bind(&run.error)
    .bind(&run.paused)
    .bind(json_text(&run.settings))
    .bind(i64::try_from(run.tokens_used).unwrap_or(i64::MAX))
    .bind(run.last_seq)
    .bind(run.created_at.0)
    .bind(run.deadline_at.map(|at| at.0))
    .bind(run.time_left_ms)
    .bind(run.approval_until.map(|at| at.0))
    .bind(run.ended_at.map(|at| at.0))
    .bind(server)
    .execute(&mut *transaction)
    .await?;
    Ok(())
}

async fn write_node(transaction: &mut Transaction, run: &RunId, node: &NodeRow) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO run_nodes (run, id, place, spec, state, attempts, next_at, approved, output, error, started_at, \
         ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, id) DO UPDATE SET \
         place = excluded.place, spec = excluded.spec, state = excluded.state, attempts = excluded.attempts, \
         next_at = excluded.next_at, approved = excluded.approved, output = excluded.output, error = excluded.error, \
         started_at = excluded.started_at, ended_at = excluded.ended_at",
    )
    .bind(run.as_str())
    .bind(&node.spec.id)
    .bind(node.place)
    .bind(json_text(&node.spec))
    .bind(node.state.text())
    .bind(node.attempts)
    .bind(node.next_at.map(|at| at.0))
    .bind(node.approved)
    .bind(node.output.as_ref().map(Value::to_string))
    .bind(&node.error)
    .bind(node.started_at.map(|at| at.0))
    .bind(node.ended_at.map(|at| at.0))
    .execute(&mut *transaction)
    .await?;
    Ok(())
}

/// A run ends once, but a turn may be written twice if the reply to the first write was lost.
async fn write_cleanup_intent(transaction: &mut Transaction, run: &RunRow) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO run_cleanups (run, team, sandbox_done, agent_done, killed, attempts, next_at) \
         VALUES (?, ?, 0, 0, 0, 0, ?) ON CONFLICT (run) DO NOTHING",
    )
    .bind(run.id.as_str())
    .bind(&run.team.0)
    .bind(Timestamp::now().0)
    .execute(&mut *transaction)
    .await?;
    Ok(())
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("settings and nodes have only string keys, so they serialize to JSON")
}
