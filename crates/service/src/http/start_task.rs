//! `POST /api/v1/agents/{id}/start-task`: an agent takes a task and gets a sandbox for it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use isopod_control::audit::Subject;
use isopod_control::http::{ApiError, Caller, JsonBody};
use serde_json::{Value, json};

use super::names::checked_name;
use super::sandbox_create::NewBody;
use super::views::sandbox;
use crate::Access;
use crate::Service;

/// The body has a task id and optionally the fields of a create.
pub(super) async fn start_task(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(agent): Path<String>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let task = body.0.get("task_id").and_then(Value::as_str).map(str::to_owned);
    let task = checked_name("task_id", task.ok_or_else(|| ApiError::bad_request("task_id is missing"))?)?;
    let wanted = body.parse::<NewBody>()?.checked(&service)?;
    if wanted.agent.as_ref().is_some_and(|named| *named != agent) {
        return Err(ApiError::bad_request("agent_id differs from the agent in the path"));
    }
    let (task, row) = service.start_task(&Access::from(&caller), &agent, &task, wanted).await?;
    let body = json!({ "task": task, "sandbox": sandbox(&row) });
    let mut response = (StatusCode::CREATED, Json(body)).into_response();
    response.extensions_mut().insert(Subject::from(&row));
    Ok(response)
}
