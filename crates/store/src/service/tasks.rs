//! Tasks: what to do, which agent does it, and the status: `pending → in_progress → completed | failed | cancelled`.

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, query};
use crate::{Store, StoreError, TeamId};

/// A task in the form that the API returns.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskRow {
    pub id: String,
    #[serde(skip)]
    pub team: TeamId,
    pub title: String,
    pub description: String,
    pub status: String,
    pub priority: String,
    pub assigned_agent_id: Option<String>,
    pub sandbox_id: Option<String>,
    pub git_branch: Option<String>,
    pub pull_request_url: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub completed_at: Option<Timestamp>,
}

const COLUMNS: &str = "id, team, title, description, status, priority, agent, sandbox, git_branch, pull_request_url, \
     created_at, updated_at, completed_at";

impl Store {
    /// Records a new task. Returns false if the id is taken.
    pub async fn insert_task(&self, row: &TaskRow) -> Result<bool, StoreError> {
        let mut query = QueryBuilder::new("INSERT INTO tasks (");
        query.push(COLUMNS).push(") VALUES (");
        let mut values = query.separated(", ");
        values.push_bind(&row.id).push_bind(&row.team.0).push_bind(&row.title).push_bind(&row.description);
        values.push_bind(&row.status).push_bind(&row.priority).push_bind(&row.assigned_agent_id);
        values.push_bind(&row.sandbox_id).push_bind(&row.git_branch).push_bind(&row.pull_request_url);
        values.push_bind(row.created_at.0).push_bind(row.updated_at.0).push_bind(row.completed_at.map(|at| at.0));
        query.push(") ON CONFLICT DO NOTHING");
        let done = query.build().execute(&self.write).await.map_err(StoreError::doing("record a task"))?;
        Ok(done.rows_affected() > 0)
    }

    pub async fn find_task(&self, team: &TeamId, id: &str) -> Result<Option<TaskRow>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM tasks WHERE team = ").push_bind(&team.0).push(" AND id = ").push_bind(id);
        let row = query.build().fetch_optional(&self.read).await.map_err(StoreError::doing("read a task"))?;
        Ok(row.as_ref().map(read))
    }

    pub async fn list_tasks(
        &self,
        team: &TeamId,
        agent: Option<&str>,
        status: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TaskRow>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM tasks WHERE team = ").push_bind(&team.0);
        for (column, value) in [("agent", agent), ("status", status)] {
            if let Some(value) = value {
                query.push(" AND ").push(column).push(" = ").push_bind(value);
            }
        }
        query.push(" ORDER BY created_at DESC, id DESC LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("list tasks"))?;
        Ok(rows.iter().map(read).collect())
    }

    /// Starts a pending task. Returns whether it was pending.
    pub async fn begin_task(&self, team: &TeamId, id: &str, agent: &str) -> Result<bool, StoreError> {
        self.move_task(team, id, &["pending"], "in_progress", Some(agent), false).await
    }

    /// Makes a task pending again if it could not be started.
    pub async fn put_task_back(&self, team: &TeamId, id: &str) -> Result<bool, StoreError> {
        self.move_task(team, id, &["in_progress"], "pending", None, false).await
    }

    /// Ends a task as `completed`, `failed` or `cancelled`. Returns whether it was still open.
    pub async fn end_task(&self, team: &TeamId, id: &str, how: &'static str) -> Result<bool, StoreError> {
        self.move_task(team, id, &["pending", "in_progress"], how, None, true).await
    }

    async fn move_task(
        &self,
        team: &TeamId,
        id: &str,
        from: &[&'static str],
        to: &'static str,
        agent: Option<&str>,
        is_end: bool,
    ) -> Result<bool, StoreError> {
        let now = Timestamp::now().0;
        let mut query = QueryBuilder::new("UPDATE tasks SET status = ");
        query.push_bind(to).push(", updated_at = ").push_bind(now);
        if let Some(agent) = agent {
            query.push(", agent = ").push_bind(agent);
        }
        if is_end {
            query.push(", completed_at = ").push_bind(now);
        }
        query.push(" WHERE team = ").push_bind(&team.0).push(" AND id = ").push_bind(id).push(" AND status IN (");
        let mut states = query.separated(", ");
        for state in from {
            states.push_bind(*state);
        }
        query.push(")");
        let done = query.build().execute(&self.write).await.map_err(StoreError::doing("change a task's status"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Records details of a task that become known later. Values that are `None` stay unchanged.
    pub async fn note_task(
        &self,
        team: &TeamId,
        id: &str,
        sandbox: Option<&str>,
        branch: Option<&str>,
        pull_request: Option<&str>,
    ) -> Result<bool, StoreError> {
        let done = query(
            "UPDATE tasks SET sandbox = coalesce(?, sandbox), git_branch = coalesce(?, git_branch), \
             pull_request_url = coalesce(?, pull_request_url), updated_at = ? WHERE team = ? AND id = ?",
        )
        .bind(sandbox)
        .bind(branch)
        .bind(pull_request)
        .bind(Timestamp::now().0)
        .bind(&team.0)
        .bind(id)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record the details of a task"))?;
        Ok(done.rows_affected() > 0)
    }
}

fn read(row: &Row) -> TaskRow {
    TaskRow {
        id: row.get(0),
        team: TeamId(row.get(1)),
        title: row.get(2),
        description: row.get(3),
        status: row.get(4),
        priority: row.get(5),
        assigned_agent_id: row.get(6),
        sandbox_id: row.get(7),
        git_branch: row.get(8),
        pull_request_url: row.get(9),
        created_at: Timestamp(row.get(10)),
        updated_at: Timestamp(row.get(11)),
        completed_at: row.get::<Option<i64>>(12).map(Timestamp),
    }
}
