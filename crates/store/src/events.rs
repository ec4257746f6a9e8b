//! Lifecycle events: what happened to sandboxes, for clients that follow them.

use isopod_wire::{ExecutionId, SandboxId};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use utoipa::ToSchema;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::POSTGRES_NOW;
use crate::database::{Pool, QueryBuilder, Row, Transaction, query};
use crate::secrets::new_uuid;

#[derive(Clone, Debug)]
pub struct Event {
    pub id: String,
    pub team: TeamId,
    pub sandbox: String,
    pub execution: Option<String>,
    pub template: String,
    pub kind: String,
    pub at: Timestamp,
    pub data: Value,
}

/// An event in the words of E2B.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Event)]
pub struct ShownEvent {
    version: &'static str,
    id: String,
    #[serde(rename = "type")]
    kind: String,
    timestamp: Timestamp,
    event_category: &'static str,
    event_label: String,
    #[schema(value_type = Object)]
    event_data: Value,
    sandbox_id: String,
    sandbox_execution_id: Option<String>,
    sandbox_template_id: String,
    sandbox_build_id: &'static str,
    sandbox_team_id: String,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Created,
    Updated,
    Paused,
    Resumed,
    /// A snapshot of it was taken.
    Checkpointed,
    Killed,
}

/// Which events to read.
#[derive(Clone, Debug)]
pub struct EventQuery {
    pub team: TeamId,
    pub sandbox: Option<SandboxId>,
    pub types: Vec<EventType>,
    pub ascending: bool,
    pub offset: u32,
    pub limit: u32,
}

impl EventType {
    pub const ALL: [Self; 6] =
        [Self::Created, Self::Updated, Self::Paused, Self::Resumed, Self::Checkpointed, Self::Killed];

    pub fn text(self) -> &'static str {
        match self {
            Self::Created => "sandbox.lifecycle.created",
            Self::Updated => "sandbox.lifecycle.updated",
            Self::Paused => "sandbox.lifecycle.paused",
            Self::Resumed => "sandbox.lifecycle.resumed",
            Self::Checkpointed => "sandbox.lifecycle.checkpointed",
            Self::Killed => "sandbox.lifecycle.killed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.text() == text)
    }
}

impl Event {
    pub fn new(
        kind: EventType,
        (team, sandbox, execution, template): (&TeamId, &SandboxId, Option<&ExecutionId>, &str),
        data: Value,
    ) -> Self {
        Self {
            id: new_uuid(),
            team: team.clone(),
            sandbox: sandbox.to_string(),
            execution: execution.map(ExecutionId::to_string),
            template: template.to_owned(),
            kind: kind.text().to_owned(),
            at: Timestamp::now(),
            data,
        }
    }
}

impl Event {
    /// The form in lists and in webhook deliveries.
    pub fn shown(self) -> ShownEvent {
        ShownEvent {
            version: "v2",
            id: self.id,
            event_label: self.kind.rsplit('.').next().unwrap_or_default().to_owned(),
            kind: self.kind,
            timestamp: self.at,
            event_category: "lifecycle",
            event_data: self.data,
            sandbox_id: self.sandbox,
            sandbox_execution_id: self.execution,
            sandbox_template_id: self.template,
            sandbox_build_id: "",
            sandbox_team_id: self.team.0,
        }
    }
}

impl Store {
    /// Records an event, together with the webhook deliveries that it causes.
    pub async fn insert_event(&self, event: &Event) -> Result<(), StoreError> {
        let failed = StoreError::doing("record an event");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query(
            "INSERT INTO events (id, team, sandbox, execution, template, type, at, data) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&event.id)
        .bind(&event.team.0)
        .bind(&event.sandbox)
        .bind(&event.execution)
        .bind(&event.template)
        .bind(&event.kind)
        .bind(event.at.0)
        .bind(event.data.to_string())
        .execute(&mut transaction)
        .await
        .map_err(&failed)?;
        for webhook in webhooks_for(&mut transaction, event).await.map_err(&failed)? {
            // Due at once, by the clock that the delivering servers use.
            let due = match &self.write {
                Pool::Sqlite(..) => "?".to_owned(),
                Pool::Postgres(_) => format!("LEAST(?, {POSTGRES_NOW})"),
            };
            let text = format!(
                "INSERT INTO webhook_deliveries (id, webhook, body, attempts, next_at) VALUES (?, ?, ?, 0, {due})"
            );
            query(AssertSqlSafe(text))
                .bind(new_uuid().replace('-', ""))
                .bind(webhook)
                .bind(json!(event.clone().shown()).to_string())
                .bind(event.at.0)
                .execute(&mut transaction)
                .await
                .map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)
    }

    pub async fn list_events(&self, wanted: &EventQuery) -> Result<Vec<Event>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT id, team, sandbox, execution, template, type, at, data FROM events WHERE team = ",
        );
        query.push_bind(&wanted.team.0);
        if let Some(sandbox) = &wanted.sandbox {
            query.push(" AND sandbox = ").push_bind(sandbox.as_str());
        }
        if !wanted.types.is_empty() {
            query.push(" AND type IN (");
            let mut types = query.separated(", ");
            for kind in &wanted.types {
                types.push_bind(kind.text());
            }
            query.push(")");
        }
        query.push(" ORDER BY seq ").push(if wanted.ascending { "ASC" } else { "DESC" });
        query.push(" LIMIT ").push_bind(wanted.limit).push(" OFFSET ").push_bind(wanted.offset);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read events"))?;
        Ok(rows
            .iter()
            .map(|row| Event {
                id: row.get(0),
                team: TeamId(row.get(1)),
                sandbox: row.get(2),
                execution: row.get(3),
                template: row.get(4),
                kind: row.get(5),
                at: Timestamp(row.get(6)),
                data: serde_json::from_str(row.get(7)).unwrap_or_default(),
            })
            .collect())
    }
}

/// The team's webhooks that subscribe to this event.
async fn webhooks_for(transaction: &mut Transaction, event: &Event) -> Result<Vec<String>, sqlx::Error> {
    let rows = query("SELECT id, events FROM webhooks WHERE team = ? AND enabled = 1")
        .bind(&event.team.0)
        .fetch_all(transaction)
        .await?;
    let wants = |row: &&Row| {
        let kinds: Vec<String> = serde_json::from_str(row.get(1)).unwrap_or_default();
        kinds.contains(&event.kind)
    };
    Ok(rows.iter().filter(wants).map(|row| row.get(0)).collect())
}
