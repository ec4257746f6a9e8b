//! `GET /runtime/tools` and `POST /runtime/{run_id}/tools/{name}`: the tools for a model, and its calls.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, JsonBody, Param, Query, QueryParams};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::super::runtime_runs::refuse_ended;
use super::execute::checked_agent;
use super::parse_run;
use super::tool_log::CallLog;
use crate::Agents;
use crate::sessions::UseError;

pub(super) enum Call {}

impl QueryParams for Call {
    const PARAMS: &'static [Param] = &[Param::text_of("agent_id", 1, 200)];
}

#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeTools)]
pub(super) struct Tools {
    /// As models are told of tools.
    #[schema(value_type = Vec<Object>)]
    tools: Value,
}

pub(super) async fn list(State(app): State<Arc<Agents>>, _: Caller) -> Json<Tools> {
    Json(Tools { tools: app.sessions.tools() })
}

/// The body has the arguments from the model. The query names the agent.
pub(super) async fn call(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, name)): Path<(String, String)>,
    query: Query<Call>,
    body: JsonBody<Value>,
) -> Result<Json<Value>, ApiError> {
    let run = parse_run(&run_id)?;
    let agent = checked_agent(query.text("agent_id").map(str::to_owned))?;
    refuse_ended(&app, &caller, &run_id).await?;
    let mut log = CallLog(app.runs.tool_log(&caller.team, &run, agent.as_deref(), &name, &body.0));
    let used = app.sessions.use_tool(&caller.team, &run, &name, body.0, agent, &mut log).await;
    log.end(&used);
    match used {
        Ok(value) => Ok(Json(value)),
        Err(UseError::Session(error)) => Err(error.into()),
        Err(error @ UseError::Unknown(_)) => Err(ApiError::not_found(error.to_string()).with_error(error.to_string())),
        Err(error @ UseError::Arguments(_)) => {
            Err(ApiError::bad_request(error.to_string()).with_error(error.to_string()))
        }
    }
}
