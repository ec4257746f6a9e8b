//! The agents of the service: who works on which task, in which sandbox.

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Row, query};
use crate::{Store, StoreError, TeamId};

/// An agent in the form that the API returns.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Agent)]
pub struct AgentRow {
    pub id: String,
    #[serde(skip)]
    pub team: TeamId,
    pub name: String,
    pub role: String,
    /// `idle` or `working`.
    pub status: String,
    pub current_task_id: Option<String>,
    pub sandbox_id: Option<String>,
    pub avatar_url: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

const COLUMNS: &str = "id, team, name, role, status, current_task, sandbox, avatar_url, created_at, updated_at";

impl Store {
    /// Records a new agent. Returns false if the id is taken.
    pub async fn insert_agent(&self, row: &AgentRow) -> Result<bool, StoreError> {
        let done = query(
            "INSERT INTO agents (id, team, name, role, status, current_task, sandbox, avatar_url, created_at, \
             updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&row.id)
        .bind(&row.team.0)
        .bind(&row.name)
        .bind(&row.role)
        .bind(&row.status)
        .bind(&row.current_task_id)
        .bind(&row.sandbox_id)
        .bind(&row.avatar_url)
        .bind(row.created_at.0)
        .bind(row.updated_at.0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record an agent"))?;
        Ok(done.rows_affected() > 0)
    }

    pub async fn find_agent(&self, team: &TeamId, id: &str) -> Result<Option<AgentRow>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM agents WHERE team = ").push_bind(&team.0).push(" AND id = ").push_bind(id);
        let row = query.build().fetch_optional(&self.read).await.map_err(StoreError::doing("read an agent"))?;
        Ok(row.as_ref().map(read))
    }

    pub async fn list_agents(&self, team: &TeamId, limit: u32) -> Result<Vec<AgentRow>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM agents WHERE team = ").push_bind(&team.0);
        query.push(" ORDER BY id LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.read).await.map_err(StoreError::doing("list agents"))?;
        Ok(rows.iter().map(read).collect())
    }

    /// Assigns a task to the agent if it has none. Returns whether it was assigned.
    pub async fn assign_task(&self, team: &TeamId, agent: &str, task: &str) -> Result<bool, StoreError> {
        let done = query(
            "UPDATE agents SET status = 'working', current_task = ?, updated_at = ? \
             WHERE team = ? AND id = ? AND current_task IS NULL",
        )
        .bind(task)
        .bind(Timestamp::now().0)
        .bind(&team.0)
        .bind(agent)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("assign a task to an agent"))?;
        Ok(done.rows_affected() > 0)
    }

    pub async fn set_agent_sandbox(&self, team: &TeamId, agent: &str, sandbox: &str) -> Result<(), StoreError> {
        query("UPDATE agents SET sandbox = ?, updated_at = ? WHERE team = ? AND id = ?")
            .bind(sandbox)
            .bind(Timestamp::now().0)
            .bind(&team.0)
            .bind(agent)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record an agent's sandbox"))?;
        Ok(())
    }

    /// Makes the agent idle if it is working on this task.
    pub async fn free_agent(&self, team: &TeamId, task: &str) -> Result<(), StoreError> {
        query(
            "UPDATE agents SET status = 'idle', current_task = NULL, sandbox = NULL, updated_at = ? \
             WHERE team = ? AND current_task = ?",
        )
        .bind(Timestamp::now().0)
        .bind(&team.0)
        .bind(task)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("make an agent idle"))?;
        Ok(())
    }

    /// Removes an idle agent. Returns whether it existed.
    pub async fn remove_agent(&self, team: &TeamId, id: &str) -> Result<bool, StoreError> {
        let done = query("DELETE FROM agents WHERE team = ? AND id = ? AND current_task IS NULL")
            .bind(&team.0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("remove an agent"))?;
        Ok(done.rows_affected() > 0)
    }
}

fn read(row: &Row) -> AgentRow {
    AgentRow {
        id: row.get(0),
        team: TeamId(row.get(1)),
        name: row.get(2),
        role: row.get(3),
        status: row.get(4),
        current_task_id: row.get(5),
        sandbox_id: row.get(6),
        avatar_url: row.get(7),
        created_at: Timestamp(row.get(8)),
        updated_at: Timestamp(row.get(9)),
    }
}
