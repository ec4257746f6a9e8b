//! Routes for agent services: what an agent of a run would be sent, and plans of the configured service.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use isopod_api::{ApiError, Caller, JsonBody};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::runtime_runs::find_run;
use crate::Agents;
use crate::runs::{AgentError, Invocation, PlanError};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlanRequest)]
pub(super) struct PlanBody {
    /// What the workflow is to do, in words.
    #[schema(min_length = 1, max_length = 100_000)]
    text: String,
}

const MAX_TEXT: usize = 100_000;

/// The invocation of an agent as the run would send it now. It invokes nothing.
pub(super) async fn invocation(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, node)): Path<(String, String)>,
) -> Result<Json<Invocation>, ApiError> {
    let row = find_run(&app, &caller, &id).await?;
    let invocation = app.runs.invocation(&row, &node).await?;
    invocation.map(Json).ok_or_else(|| ApiError::not_found("the run has no such agent"))
}

/// A workflow from the agent service, which `/runtime/start` takes as it is.
pub(super) async fn plan(
    State(app): State<Arc<Agents>>,
    _: Caller,
    body: JsonBody<PlanBody>,
) -> Result<Json<Value>, ApiError> {
    let PlanBody { text } = body.parse()?;
    if text.trim().is_empty() || text.chars().count() > MAX_TEXT {
        return Err(ApiError::bad_request(format!("text must have 1 to {MAX_TEXT} characters")));
    }
    Ok(Json(app.runs.plan(&text).await?))
}

impl From<PlanError> for ApiError {
    fn from(error: PlanError) -> ApiError {
        let said = isopod_wire::error_chain(&error);
        match error {
            PlanError::Agent(error @ AgentError::NoPlanner) => {
                ApiError::new(StatusCode::NOT_IMPLEMENTED, error.to_string())
            }
            PlanError::Agent(_) => ApiError::new(StatusCode::BAD_GATEWAY, said),
            PlanError::Workflow(_) | PlanError::Start(_) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, said),
        }
    }
}
