//! The sandboxes of the service: their owners and their states.

use std::collections::BTreeMap;
use std::time::Duration;

use isopod_wire::SandboxId;
use serde::Serialize;
use utoipa::ToSchema;

use super::quota::{Claimant, QuotaExceeded, Quotas, exceeded};
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, query};
use crate::{Store, StoreError, TeamId};

#[derive(Clone, Debug)]
pub struct ServiceSandbox {
    pub id: String,
    pub team: TeamId,
    pub server: String,
    pub agent: Option<String>,
    pub task: Option<String>,
    /// The id at the backend, once there is one.
    pub sandbox: Option<SandboxId>,
    pub template: String,
    pub status: Status,
    /// Why it stopped or failed.
    pub reason: Option<String>,
    pub repo_url: Option<String>,
    pub branch_name: Option<String>,
    pub cpu_millis: Option<i64>,
    pub memory_mib: i64,
    pub metadata: BTreeMap<String, String>,
    pub timeout: Duration,
    /// The idempotency key of the create request at the backend.
    pub create_key: String,
    /// The caller's idempotency key for the create request, and the hash of the request.
    pub idempotency: Option<(String, [u8; 32])>,
    pub created_at: Timestamp,
    pub running_at: Option<Timestamp>,
    pub destroyed_at: Option<Timestamp>,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ServiceSandboxStatus)]
pub enum Status {
    Creating,
    Running,
    Paused,
    Stopped,
    Error,
}

/// The result of recording a new sandbox.
#[derive(Debug)]
pub enum Taken {
    /// It is recorded. Continue.
    First,
    /// The same request was made before and created this sandbox.
    Before(Box<ServiceSandbox>),
    /// The caller's key was used for another request.
    Mismatch,
    Exceeded(QuotaExceeded),
}

/// Which sandboxes to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct ServiceQuery {
    /// `None` for all teams.
    pub team: Option<TeamId>,
    pub agent: Option<String>,
    pub task: Option<String>,
    pub status: Option<Status>,
    /// Whether to include sandboxes that are gone.
    pub with_gone: bool,
    pub before: Option<(Timestamp, String)>,
    pub limit: u32,
}

impl Status {
    pub const ALL: [Self; 5] = [Self::Creating, Self::Running, Self::Paused, Self::Stopped, Self::Error];

    pub fn text(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.text() == text)
    }
}

const COLUMNS: &str = "id, team, server, agent, task, sandbox, template, status, reason, repo_url, branch_name, \
     cpu_millis, memory_mib, metadata, timeout_seconds, create_key, idempotency, request_hash, created_at, running_at, \
     destroyed_at";

impl Store {
    /// Records that a sandbox is going to be created, if the limits allow it and the request is not a repetition.
    pub async fn insert_service_sandbox(&self, row: &ServiceSandbox, quotas: &Quotas) -> Result<Taken, StoreError> {
        let failed = StoreError::doing("record a new sandbox");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        // Counting and inserting must not interleave with those of another server.
        transaction.lock(&format!("sandboxes of {}", row.team.0)).await.map_err(&failed)?;
        if let Some((key, request)) = &row.idempotency {
            let mut query = select();
            query.push("team = ").push_bind(&row.team.0).push(" AND idempotency = ").push_bind(key);
            if let Some(found) = query.build().fetch_optional(&mut transaction).await.map_err(&failed)? {
                let before = read(&found)?;
                let is_same = before.idempotency.as_ref().is_some_and(|(_, known)| known == request);
                return Ok(if is_same { Taken::Before(Box::new(before)) } else { Taken::Mismatch });
            }
        }
        let claimant = claimant(row, true);
        if let Some(found) = exceeded(&mut transaction, quotas, &claimant).await.map_err(&failed)? {
            return Ok(Taken::Exceeded(found));
        }
        insert_query(row).build().execute(&mut transaction).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(Taken::First)
    }

    /// Whether the team has used this name for a create.
    pub async fn has_service_attempt(&self, team: &TeamId, name: &str) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM service_sandboxes WHERE team = ? AND idempotency = ?")
            .bind(&team.0)
            .bind(name)
            .fetch_optional(&self.write)
            .await
            .map_err(StoreError::doing("look for an earlier create"))?;
        Ok(row.is_some())
    }

    /// Records a sandbox that was created through another API. Does nothing if it is already recorded.
    pub async fn adopt_service_sandbox(&self, row: &ServiceSandbox) -> Result<(), StoreError> {
        let mut query = insert_query(row);
        query.push(" ON CONFLICT DO NOTHING");
        query.build().execute(&self.write).await.map_err(StoreError::doing("record a sandbox"))?;
        Ok(())
    }

    /// Starts to resume a paused sandbox. If the limits allow it, it counts as running from now on.
    pub async fn begin_resuming(
        &self,
        row: &ServiceSandbox,
        quotas: &Quotas,
    ) -> Result<Option<QuotaExceeded>, StoreError> {
        let failed = StoreError::doing("record that a sandbox resumes");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        // Counting and inserting must not interleave with those of another server.
        transaction.lock(&format!("sandboxes of {}", row.team.0)).await.map_err(&failed)?;
        let still =
            query("SELECT id FROM service_sandboxes WHERE id = ? AND status = 'paused' AND destroyed_at IS NULL");
        if still.bind(&row.id).fetch_optional(&mut transaction).await.map_err(&failed)?.is_none() {
            // It is running or gone.
            return Ok(None);
        }
        if let Some(found) = exceeded(&mut transaction, quotas, &claimant(row, false)).await.map_err(&failed)? {
            return Ok(Some(found));
        }
        let run = query("UPDATE service_sandboxes SET status = 'running' WHERE id = ?");
        run.bind(&row.id).execute(&mut transaction).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(None)
    }

    /// Records that the sandbox could not be resumed.
    pub async fn end_resuming(&self, id: &str) -> Result<(), StoreError> {
        query("UPDATE service_sandboxes SET status = 'paused' WHERE id = ? AND status = 'running' AND destroyed_at IS NULL")
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record that a sandbox stays paused"))?;
        Ok(())
    }

    /// Records changes, unless the sandbox is gone. Returns whether they were recorded.
    pub async fn save_service_sandbox(&self, row: &ServiceSandbox) -> Result<bool, StoreError> {
        let done = query(
            "UPDATE service_sandboxes SET sandbox = ?, status = ?, reason = ?, repo_url = ?, branch_name = ?, \
             timeout_seconds = ?, idempotency = ?, running_at = ?, destroyed_at = ? \
             WHERE id = ? AND destroyed_at IS NULL",
        )
        .bind(row.sandbox.as_ref().map(SandboxId::as_str))
        .bind(row.status.text())
        .bind(&row.reason)
        .bind(&row.repo_url)
        .bind(&row.branch_name)
        .bind(seconds(row.timeout))
        .bind(row.idempotency.as_ref().map(|(key, _)| key))
        .bind(row.running_at.map(|at| at.0))
        .bind(row.destroyed_at.map(|at| at.0))
        .bind(&row.id)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a sandbox"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Finds a sandbox by the service's id or by the backend's, whichever team owns it. If several match, returns the
    /// newest.
    pub async fn find_service_sandbox(&self, id: &str) -> Result<Option<ServiceSandbox>, StoreError> {
        // Sorted here: for an order with a limit, PostgreSQL walks the index of that order instead of those of the ids.
        let rows = select_by_id(id).build().fetch_all(&self.read).await.map_err(StoreError::doing("read a sandbox"))?;
        let found: Result<Vec<_>, _> = rows.iter().map(read).collect();
        Ok(found?.into_iter().max_by_key(|row| row.created_at))
    }

    pub async fn list_service_sandboxes(&self, wanted: &ServiceQuery) -> Result<Vec<ServiceSandbox>, StoreError> {
        let mut query = select();
        query.push("1 = 1");
        if !wanted.with_gone {
            query.push(" AND destroyed_at IS NULL");
        }
        if let Some(team) = &wanted.team {
            query.push(" AND team = ").push_bind(&team.0);
        }
        for (column, value) in [("agent", &wanted.agent), ("task", &wanted.task)] {
            if let Some(value) = value {
                query.push(" AND ").push(column).push(" = ").push_bind(value);
            }
        }
        if let Some(status) = wanted.status {
            query.push(" AND status = ").push_bind(status.text());
        }
        if let Some((at, id)) = &wanted.before {
            query.push(" AND (created_at < ").push_bind(at.0);
            query.push(" OR (created_at = ").push_bind(at.0).push(" AND id < ").push_bind(id).push("))");
        }
        query.push(" ORDER BY created_at DESC, id DESC LIMIT ").push_bind(wanted.limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("list sandboxes"))?;
        rows.iter().map(read).collect()
    }

    /// The sandboxes of this server that are not gone.
    pub async fn live_service_sandboxes(&self, server: &str) -> Result<Vec<ServiceSandbox>, StoreError> {
        let mut query = select();
        query.push("destroyed_at IS NULL AND server = ").push_bind(server).push(" ORDER BY created_at");
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("read live sandboxes"))?;
        rows.iter().map(read).collect()
    }

    /// Why a sandbox of this server's own node ended.
    pub async fn end_reason(&self, sandbox: &SandboxId) -> Result<RecordedEnd, StoreError> {
        let row = query("SELECT state, end_reason FROM sandboxes WHERE id = ?")
            .bind(sandbox.as_str())
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("read why a sandbox ended"))?;
        let Some(row) = row else { return Ok(RecordedEnd::Unknown) };
        if row.get::<&str>(0) != "ended" {
            return Ok(RecordedEnd::NotYet);
        }
        let reason: Option<String> = row.get(1);
        Ok(reason.map_or(RecordedEnd::Unknown, RecordedEnd::Reason))
    }
}

/// What the records say about the end of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedEnd {
    /// The end is not recorded yet.
    NotYet,
    Reason(String),
    /// There is no record: the sandbox is not on this node, or it ended long ago.
    Unknown,
}

fn claimant(row: &ServiceSandbox, is_new: bool) -> Claimant<'_> {
    Claimant {
        team: &row.team,
        agent: row.agent.as_deref(),
        task: row.task.as_deref(),
        memory_mib: row.memory_mib,
        is_new,
    }
}

fn select() -> QueryBuilder<'static> {
    let mut query = QueryBuilder::new("SELECT ");
    query.push(COLUMNS).push(" FROM service_sandboxes WHERE ");
    query
}

/// By either of its ids.
fn select_by_id(id: &str) -> QueryBuilder<'_> {
    let mut query = select();
    query.push("id = ").push_bind(id).push(" OR sandbox = ").push_bind(id);
    query
}

fn insert_query(row: &ServiceSandbox) -> QueryBuilder<'static> {
    let mut query = QueryBuilder::new("INSERT INTO service_sandboxes (");
    query.push(COLUMNS).push(") VALUES (");
    let mut values = query.separated(", ");
    values.push_bind(row.id.clone()).push_bind(row.team.0.clone()).push_bind(row.server.clone());
    values.push_bind(row.agent.clone()).push_bind(row.task.clone());
    values.push_bind(row.sandbox.as_ref().map(ToString::to_string)).push_bind(row.template.clone());
    values.push_bind(row.status.text()).push_bind(row.reason.clone());
    values.push_bind(row.repo_url.clone()).push_bind(row.branch_name.clone());
    values.push_bind(row.cpu_millis).push_bind(row.memory_mib);
    values.push_bind(serde_json::to_string(&row.metadata).expect("a map of strings always serializes to JSON"));
    values.push_bind(seconds(row.timeout)).push_bind(row.create_key.clone());
    values.push_bind(row.idempotency.as_ref().map(|(key, _)| key.clone()));
    values.push_bind(row.idempotency.as_ref().map(|(_, request)| request.to_vec()));
    values.push_bind(row.created_at.0).push_bind(row.running_at.map(|at| at.0));
    values.push_bind(row.destroyed_at.map(|at| at.0));
    query.push(")");
    query
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn read(row: &Row) -> Result<ServiceSandbox, StoreError> {
    let corrupt = |what, value: &str| StoreError::Corrupt { what, value: value.to_owned() };
    let status: &str = row.get(7);
    let sandbox: Option<&str> = row.get(5);
    let metadata: &str = row.get(13);
    let request = row.get::<Option<Vec<u8>>>(17).and_then(|bytes| bytes.try_into().ok());
    Ok(ServiceSandbox {
        id: row.get(0),
        team: TeamId(row.get(1)),
        server: row.get(2),
        agent: row.get(3),
        task: row.get(4),
        sandbox: sandbox.map(|text| text.parse().map_err(|_| corrupt("a sandbox id", text))).transpose()?,
        template: row.get(6),
        status: Status::parse(status).ok_or_else(|| corrupt("a status", status))?,
        reason: row.get(8),
        repo_url: row.get(9),
        branch_name: row.get(10),
        cpu_millis: row.get(11),
        memory_mib: row.get(12),
        metadata: serde_json::from_str(metadata).map_err(|_| corrupt("metadata", metadata))?,
        timeout: Duration::from_secs(row.get::<i64>(14).unsigned_abs()),
        create_key: row.get(15),
        idempotency: row.get::<Option<String>>(16).zip(request),
        created_at: Timestamp(row.get(18)),
        running_at: row.get::<Option<i64>>(19).map(Timestamp),
        destroyed_at: row.get::<Option<i64>>(20).map(Timestamp),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(team: &TeamId, number: i64) -> ServiceSandbox {
        ServiceSandbox {
            id: format!("i{number}"),
            team: team.clone(),
            server: "alpha".to_owned(),
            agent: None,
            task: None,
            // Two rows have the same sandbox.
            sandbox: Some(format!("j{}", number / 2).parse().unwrap()),
            template: "base".to_owned(),
            status: Status::Running,
            reason: None,
            repo_url: None,
            branch_name: None,
            cpu_millis: None,
            memory_mib: 1,
            metadata: BTreeMap::new(),
            timeout: Duration::from_secs(60),
            create_key: format!("create-{number}"),
            idempotency: None,
            created_at: Timestamp(1000 + number),
            running_at: None,
            destroyed_at: None,
        }
    }

    #[tokio::test]
    async fn a_sandbox_is_found_by_the_indexes_of_its_ids_and_of_several_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        for number in 0..3000 {
            store.insert_service_sandbox(&row(&team, number), &Quotas::default()).await.unwrap();
        }
        let is_postgres = crate::testing::postgres::is_wanted();
        let (word, column) = if is_postgres { ("EXPLAIN ", 0) } else { ("EXPLAIN QUERY PLAN ", 3) };
        let plan = select_by_id("i7").explained(word).fetch_all(&store.read).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(column)).collect();
        let text = plan.join("; ");
        assert!(text.contains("service_sandboxes_sandbox") && !text.contains("SCAN"), "{text}");
        assert!(!text.contains("service_sandboxes_all") && !text.contains("Seq Scan"), "{text}");

        assert_eq!(store.find_service_sandbox("i7").await.unwrap().unwrap().id, "i7");
        assert_eq!(store.find_service_sandbox("j3").await.unwrap().unwrap().id, "i7", "the newest of two");
        assert!(store.find_service_sandbox("k").await.unwrap().is_none());
    }
}
