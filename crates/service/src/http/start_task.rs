//! `POST /api/v1/agents/{id}/start-task`: an agent takes a task and gets a sandbox for it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, JsonBody, audit::Subject};
use isopod_store::service::TaskRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::names::checked_name;
use super::sandbox_create::NewBody;
use super::views::{SandboxView, sandbox};
use crate::Access;
use crate::Service;

/// A task's id, and whatever a create may have besides.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct StartTask(NewBody);

impl PartialSchema for StartTask {
    fn schema() -> RefOr<Schema> {
        match NewBody::schema() {
            RefOr::T(Schema::Object(mut object)) => {
                object.required.push("task_id".to_owned());
                object.into()
            }
            other => other,
        }
    }
}

impl ToSchema for StartTask {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        NewBody::schemas(schemas);
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct StartedTask {
    task: TaskRow,
    sandbox: SandboxView,
}

pub(super) async fn start_task(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(agent): Path<String>,
    body: JsonBody<StartTask>,
) -> Result<(Extension<Subject>, Created<StartedTask>), ApiError> {
    let task = body.0.get("task_id").and_then(Value::as_str).map(str::to_owned);
    let task = checked_name("task_id", task.ok_or_else(|| ApiError::bad_request("task_id is missing"))?)?;
    let wanted = body.parse()?.0.checked(&service)?;
    if wanted.agent.as_ref().is_some_and(|named| *named != agent) {
        return Err(ApiError::bad_request("agent_id differs from the agent in the path"));
    }
    let (task, row) = service.start_task(&Access::from(&caller), &agent, &task, wanted).await?;
    Ok((Extension(Subject::from(&row)), Created(StartedTask { task, sandbox: sandbox(&row) })))
}
