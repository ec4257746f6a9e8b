//! Tasks: an agent takes a task and gets a sandbox for it. However the task ends, the sandbox is removed.

use std::sync::Arc;

use isopod_store::Resource;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::service::{AgentRow, ServiceQuery, ServiceSandbox, TaskRow};
use serde_json::json;

use super::access::{Access, Operation};
use super::create::NewServiceSandbox;
use super::{Service, ServiceError};

/// A task to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct NewTask {
    pub(crate) id: Option<String>,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) priority: String,
}

/// How a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskEnd {
    Completed,
    Failed,
    Cancelled,
}

impl TaskEnd {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Completed => "task_completed",
            Self::Failed => "task_failed",
            Self::Cancelled => "task_cancelled",
        }
    }
}

impl Service {
    pub(crate) async fn create_task(&self, access: &Access, wanted: NewTask) -> Result<TaskRow, ServiceError> {
        access.check_change()?;
        let now = Timestamp::now();
        let row = TaskRow {
            id: wanted.id.unwrap_or_else(new_uuid),
            team: access.team.clone(),
            title: wanted.title,
            description: wanted.description,
            status: "pending".to_owned(),
            priority: wanted.priority,
            // A task created with an agent's key is assigned to that agent.
            assigned_agent_id: access.scope.agent().map(str::to_owned),
            sandbox_id: None,
            git_branch: None,
            pull_request_url: None,
            created_at: now,
            updated_at: now,
            completed_at: None,
        };
        match self.store.insert_task(&row).await? {
            true => Ok(row),
            false => Err(ServiceError::conflict("task_exists", format!("task {:?} already exists", row.id))),
        }
    }

    pub(crate) async fn find_task(
        &self,
        access: &Access,
        operation: Operation,
        id: &str,
    ) -> Result<TaskRow, ServiceError> {
        let row = self.store.find_task(&access.team, id).await?.ok_or_else(|| ServiceError::not_found("task", id))?;
        let agent = row.assigned_agent_id.as_deref();
        access.check(operation, &row.team, agent).map_err(|denied| denied.error("task", id))?;
        Ok(row)
    }

    pub(crate) async fn find_agent(
        &self,
        access: &Access,
        operation: Operation,
        id: &str,
    ) -> Result<AgentRow, ServiceError> {
        let row = self.store.find_agent(&access.team, id).await?.ok_or_else(|| ServiceError::not_found("agent", id))?;
        access.check(operation, &row.team, Some(id)).map_err(|denied| denied.error("agent", id))?;
        Ok(row)
    }

    /// The agent takes the task and gets a sandbox for it. If that fails, both are restored.
    pub(crate) async fn start_task(
        self: &Arc<Self>,
        access: &Access,
        agent: &str,
        task: &str,
        mut wanted: NewServiceSandbox,
    ) -> Result<(TaskRow, ServiceSandbox), ServiceError> {
        self.find_agent(access, Operation::Write, agent).await?;
        let known = self.store.find_task(&access.team, task).await?;
        let known = known.ok_or_else(|| ServiceError::not_found("task", task))?;
        // An agent cannot take another agent's task.
        if known.assigned_agent_id.is_some() {
            self.find_task(access, Operation::Write, task).await?;
        }
        if !self.store.assign_task(&access.team, agent, task).await? {
            return Err(ServiceError::conflict("agent_busy", "the agent already has a task"));
        }
        if !self.store.begin_task(&access.team, task, agent).await? {
            self.store.free_agent(&access.team, task).await?;
            return Err(ServiceError::conflict("task_not_pending", "the task has already started or ended"));
        }
        wanted.agent = Some(agent.to_owned());
        wanted.task = Some(task.to_owned());
        match self.create(access, wanted).await {
            Ok(sandbox) => {
                self.store.set_agent_sandbox(&access.team, agent, &sandbox.id).await?;
                let branch = sandbox.branch_name.as_deref();
                self.store.note_task(&access.team, task, Some(&sandbox.id), branch, None).await?;
                let row = self.store.find_task(&access.team, task).await?;
                let row = row.ok_or_else(|| ServiceError::not_found("task", task))?;
                // If the task was ended in the meantime, its sandbox was not known yet.
                if row.completed_at.is_some() {
                    self.end(sandbox, "task_ended").await?;
                    return Err(ServiceError::conflict("task_not_pending", "the task was ended while it started"));
                }
                Ok((row, sandbox))
            }
            Err(error) => {
                self.store.put_task_back(&access.team, task).await?;
                self.store.free_agent(&access.team, task).await?;
                Err(error)
            }
        }
    }

    /// Ends a task and its sandboxes, as far as the caller may end them. An ended task stays as it is, and its
    /// sandboxes are ended again.
    pub(crate) async fn end_task(
        self: &Arc<Self>,
        access: &Access,
        id: &str,
        how: TaskEnd,
    ) -> Result<TaskRow, ServiceError> {
        let row = self.find_task(access, Operation::Write, id).await?;
        // Only the server that has a sandbox can end it.
        for sandbox in self.sandboxes_of_task(access, &row).await?.iter().filter_map(|row| row.sandbox.as_ref()) {
            self.store.check_here(Resource::Sandbox(sandbox, None)).await?;
        }
        let is_new = self.store.end_task(&row.team, id, how.text()).await?;
        if !is_new && row.status != how.text() {
            let message = format!("the task is already {}", row.status);
            return Err(ServiceError::conflict("task_ended", message));
        }
        self.store.free_agent(&row.team, id).await?;
        for sandbox in self.sandboxes_of_task(access, &row).await? {
            self.end(sandbox, how.reason()).await?;
        }
        self.find_task(access, Operation::Read, id).await
    }

    /// The sandboxes of a task. Anyone can put the name of a task on a sandbox, so those of another agent than the
    /// task's do not count.
    async fn sandboxes_of_task(&self, access: &Access, task: &TaskRow) -> Result<Vec<ServiceSandbox>, ServiceError> {
        let wanted = ServiceQuery {
            team: Some(task.team.clone()),
            task: Some(task.id.clone()),
            limit: 10_000,
            ..ServiceQuery::default()
        };
        let is_of_task = |row: &ServiceSandbox| match (&row.agent, &task.assigned_agent_id) {
            (Some(agent), Some(assigned)) => agent == assigned,
            _ => true,
        };
        let may_end = |row: &ServiceSandbox| access.check(Operation::Write, &row.team, row.agent.as_deref()).is_ok();
        let labelled = self.store.list_service_sandboxes(&wanted).await?;
        Ok(labelled.into_iter().filter(|row| is_of_task(row) && may_end(row)).collect())
    }

    /// Records a branch or a pull request. A pull request is published to followers.
    pub(crate) async fn update_task(
        &self,
        access: &Access,
        id: &str,
        branch: Option<&str>,
        pull_request: Option<&str>,
    ) -> Result<TaskRow, ServiceError> {
        let row = self.find_task(access, Operation::Write, id).await?;
        self.store.note_task(&row.team, id, None, branch, pull_request).await?;
        if let Some(url) = pull_request {
            let data = json!({ "task_id": id, "pull_request_url": url });
            self.hub.publish(&row.team, row.assigned_agent_id.as_deref(), "pr_created", data);
        }
        self.find_task(access, Operation::Read, id).await
    }
}
