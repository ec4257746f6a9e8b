//! `/api/v1/tasks`: the tasks of a team. However a task ends, its sandbox is removed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, JsonBody, Param, Query, QueryParams};
use isopod_store::service::TaskRow;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::names::{checked_option, checked_text};
use crate::Access;
use crate::Service;
use crate::{NewTask, Operation, TaskEnd};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTask)]
pub(super) struct NewTaskBody {
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_.:@-]+$")]
    id: Option<String>,
    #[schema(min_length = 1, max_length = 500)]
    title: String,
    #[schema(max_length = 65536)]
    description: Option<String>,
    /// `medium` if not given.
    priority: Option<Priority>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = TaskPriority)]
enum Priority {
    Low,
    Medium,
    High,
    Urgent,
}

impl Priority {
    fn text(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Urgent => "urgent",
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TaskChange)]
pub(super) struct ChangeBody {
    #[schema(min_length = 1, max_length = 200)]
    git_branch: Option<String>,
    #[schema(min_length = 1, max_length = 2048)]
    pull_request_url: Option<String>,
}

pub(super) enum ListTasks {}

impl QueryParams for ListTasks {
    const PARAMS: &'static [Param] =
        &[Param::text("agent_id"), Param::one_of("status", &STATES), Param::number("limit", 1, MAX_LIMIT)];
}

#[derive(Serialize, ToSchema)]
#[schema(as = Tasks)]
pub(super) struct TaskList {
    tasks: Vec<TaskRow>,
}

const MAX_LIMIT: i64 = 100;
const STATES: [&str; 5] = ["pending", "in_progress", "completed", "failed", "cancelled"];

pub(super) async fn create(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: JsonBody<NewTaskBody>,
) -> Result<Created<TaskRow>, ApiError> {
    let body = body.parse()?;
    let description = body.description.unwrap_or_default();
    if description.len() > 64 << 10 || description.contains('\0') {
        return Err(ApiError::bad_request("description must have at most 65536 bytes and no zero byte"));
    }
    let wanted = NewTask {
        id: checked_option("id", body.id)?,
        title: checked_text("title", body.title, 500)?,
        description,
        priority: body.priority.unwrap_or(Priority::Medium).text().to_owned(),
    };
    Ok(Created(service.create_task(&Access::from(&caller), wanted).await?))
}

pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query<ListTasks>,
) -> Result<Json<TaskList>, ApiError> {
    let agent = Access::from(&caller).agent_filter(query.text("agent_id"))?;
    let status = query.text("status").map(|text| one_of("status", text, &STATES)).transpose()?;
    let limit = query.number("limit")?.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(100);
    let tasks = service.store.list_tasks(&caller.team, agent.as_deref(), status, limit).await?;
    Ok(Json(TaskList { tasks }))
}

pub(super) async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<TaskRow>, ApiError> {
    Ok(Json(service.find_task(&Access::from(&caller), Operation::Read, &id).await?))
}

pub(super) async fn change(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<ChangeBody>,
) -> Result<Json<TaskRow>, ApiError> {
    let body = body.parse()?;
    let branch = body.git_branch.map(|name| checked_text("git_branch", name, 200)).transpose()?;
    let url = body.pull_request_url.map(|url| checked_text("pull_request_url", url, 2048)).transpose()?;
    let row = service.update_task(&Access::from(&caller), &id, branch.as_deref(), url.as_deref()).await?;
    Ok(Json(row))
}

pub(super) async fn finish(
    state: State<Arc<Service>>,
    caller: Caller,
    id: Path<String>,
) -> Result<Json<TaskRow>, ApiError> {
    end(state, caller, id, TaskEnd::Completed).await
}

pub(super) async fn fail(
    state: State<Arc<Service>>,
    caller: Caller,
    id: Path<String>,
) -> Result<Json<TaskRow>, ApiError> {
    end(state, caller, id, TaskEnd::Failed).await
}

pub(super) async fn cancel(
    state: State<Arc<Service>>,
    caller: Caller,
    id: Path<String>,
) -> Result<Json<TaskRow>, ApiError> {
    end(state, caller, id, TaskEnd::Cancelled).await
}

async fn end(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    how: TaskEnd,
) -> Result<Json<TaskRow>, ApiError> {
    Ok(Json(service.end_task(&Access::from(&caller), &id, how).await?))
}

fn one_of<'a>(field: &str, text: &'a str, known: &[&str]) -> Result<&'a str, ApiError> {
    if known.contains(&text) {
        return Ok(text);
    }
    Err(ApiError::bad_request(format!("{field} must be one of {}", known.join(", "))))
}
