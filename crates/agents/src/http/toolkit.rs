//! `/api/v1/toolkit` and `/api/v1/executions/{id}/toolkit`: tools for agents, in the sandbox of an execution.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use isopod_api::{ApiError, Caller, JsonBody, Listing, Prepared, claimed_execution, known_execution};
use isopod_store::ExecutionName;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::Agents;
use crate::toolkit::{StartedToolkit, Tool, ToolError, ToolSchema, Toolkit, ToolkitConfig, schemas};

/// What every result of a tool has. Each tool has more.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolkitResult)]
pub(super) struct CallResult {
    success: bool,
    /// The same.
    ok: bool,
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sandbox_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    restarted: Option<bool>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct EndedToolkit {
    /// Whether there was a sandbox.
    killed: bool,
}

/// What the tools are and take.
pub(super) async fn tools(_: Caller) -> Listing<ToolSchema> {
    Listing(schemas())
}

pub(super) async fn config(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ToolkitConfig>, ApiError> {
    let execution = known_execution(&app.fleet.store, &caller, &id).await?;
    Ok(Json(stored_config(&app, &execution).await?))
}

/// Sets the configuration of an execution's tools. Omitted fields get their defaults.
pub(super) async fn configure(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<ToolkitConfig>,
) -> Result<Json<ToolkitConfig>, ApiError> {
    let config = body.parse()?;
    config.check().map_err(ApiError::bad_request)?;
    let execution = claimed_execution(&app.fleet.store, &caller, &id).await?;
    app.fleet.store.set_toolkit_config(&execution, &json!(config).to_string()).await?;
    Ok(Json(config))
}

/// Ensures that there is a sandbox, and returns its id.
pub(super) async fn start(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<StartedToolkit>, ApiError> {
    let toolkit = toolkit_of(app, caller, &id).await?;
    Ok(Json(toolkit.start().await.map_err(refusal)?))
}

/// Ends the sandbox. The files of the execution stay.
pub(super) async fn end(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<EndedToolkit>, ApiError> {
    known_execution(&app.fleet.store, &caller, &id).await?;
    let toolkit = toolkit_of(app, caller, &id).await?;
    let killed = toolkit.end().await.map_err(refusal)?;
    Ok(Json(EndedToolkit { killed }))
}

pub(super) async fn call(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, tool)): Path<(String, String)>,
    body: JsonBody<Value>,
) -> Result<Prepared<Json<CallResult>>, ApiError> {
    let tool = Tool::parse(&tool).ok_or_else(|| ApiError::not_found("there is no such tool"))?;
    let toolkit = toolkit_of(app, caller, &id).await?;
    if !toolkit.config.has(tool) {
        return Err(ApiError::forbidden("the execution's configuration does not include this tool"));
    }
    match toolkit.call(tool, body.0).await {
        Ok(result) => Ok(Prepared::new(Json(result).into_response())),
        Err(error @ (ToolError::Gone | ToolError::Stopped | ToolError::Guest(_))) => {
            let error = Some(error.message());
            let failed = CallResult { success: false, ok: false, error, sandbox_id: None, restarted: None };
            Ok(Prepared::new(Json(failed).into_response()))
        }
        Err(error) => Err(refusal(error)),
    }
}

async fn toolkit_of(app: Arc<Agents>, caller: Caller, id: &str) -> Result<Toolkit, ApiError> {
    let execution = claimed_execution(&app.fleet.store, &caller, id).await?;
    let config = stored_config(&app, &execution).await?;
    Ok(Toolkit { app, team: caller.team, execution, config })
}

async fn stored_config(app: &Agents, execution: &ExecutionName) -> Result<ToolkitConfig, ApiError> {
    let stored = app.fleet.store.toolkit_config(execution).await?;
    // A configuration that this version cannot read counts as not set.
    Ok(stored.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

fn refusal(error: ToolError) -> ApiError {
    match error {
        ToolError::Arguments(message) => ApiError::bad_request(message),
        ToolError::Template(error) => error.into(),
        ToolError::Create(refusal) => refusal.into(),
        ToolError::Act(error) => error.into(),
        ToolError::Store(error) => error.into(),
        ToolError::Files(error) => error.into(),
        ToolError::Busy => ApiError::new(http::StatusCode::SERVICE_UNAVAILABLE, error.message()),
        ToolError::Gone | ToolError::Stopped | ToolError::Late(_) | ToolError::Guest(_) => {
            ApiError::conflict(error.message())
        }
    }
}
