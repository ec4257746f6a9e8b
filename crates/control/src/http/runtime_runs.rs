//! `/runtime`: runs of workflows. Start one, look at one, list them; [`super::runtime_orders`] tells them what to do and
//! [`super::runtime_watch`] follows them.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{Request, header};
use serde_json::{Value, json};

use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use super::runtime::ClientId;
use super::{runtime_orders, runtime_watch};
use crate::app::App;
use crate::runs::{RunId, Workflow, summary};
use crate::sessions::{Owner, RelPath};
use crate::store::{RunQuery, RunRow, RunStatus};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/runtime/start", post(start))
        .route("/runtime/state", get(state))
        .route("/runtime/signatures", get(signatures))
        .route("/runtime/runs", get(list))
        .route("/runtime/{run_id}/stop", post(runtime_orders::stop))
        .route("/runtime/{run_id}/resume", post(runtime_orders::resume))
        .route("/runtime/{run_id}/approve", post(runtime_orders::approve))
        .route("/runtime/{run_id}/artifact/{node}", get(node_output))
        .route("/runtime/{run_id}/events", get(runtime_watch::events))
        .route("/ws/runtime/{run_id}", get(runtime_watch::socket))
}

/// The text of a workflow, in JSON or YAML.
pub(super) struct WorkflowText(String);

impl FromRequest<Arc<App>> for WorkflowText {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_text = kind.is_empty() || kind == "text/plain" || kind.ends_with("json") || kind.ends_with("yaml");
        if !is_text || parts.headers.contains_key(header::CONTENT_ENCODING) {
            return Err(ApiError::bad_request("a workflow is JSON or YAML, not compressed"));
        }
        let bytes = to_bytes(body, app.max_body).await.map_err(|_| ApiError::too_large(app.max_body))?;
        let text = String::from_utf8(bytes.into()).map_err(|_| ApiError::bad_request("a workflow is UTF-8"))?;
        Ok(Self(text))
    }
}

async fn start(
    State(app): State<Arc<App>>,
    caller: Caller,
    ClientId(client): ClientId,
    text: WorkflowText,
) -> Result<Json<Value>, ApiError> {
    let workflow = Workflow::parse(&text.0)?;
    app.runs.check(&workflow)?;
    let run = RunId::random();
    attach(&app, &caller, &client, &run, &workflow.settings.attached_files).await?;
    app.runs.start(run.clone(), caller.team, client, workflow).await?;
    Ok(Json(json!({ "success": true, "run_id": run.as_str() })))
}

/// Copies files of the library into the run's input, where its nodes find them.
async fn attach(app: &App, caller: &Caller, client: &str, run: &RunId, names: &[String]) -> Result<(), ApiError> {
    if names.is_empty() {
        return Ok(());
    }
    let bad = |error: &dyn std::error::Error| ApiError::bad_request(error.to_string());
    let paths = names.iter().map(|name| RelPath::parse(name)).collect::<Result<Vec<_>, _>>();
    let owner = Owner::run(run.as_str()).map_err(|error| bad(&error))?;
    app.sessions.attach_library(&caller.team, &owner, client, &paths.map_err(|error| bad(&error))?).await?;
    Ok(())
}

async fn state(State(app): State<Arc<App>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let row = named_run(&app, &caller, query).await?;
    Ok(Json(app.runs.state(&row).await?))
}

async fn signatures(State(app): State<Arc<App>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let row = named_run(&app, &caller, query).await?;
    Ok(Json(app.runs.signatures(&row.id).await?))
}

/// What a node gave.
async fn node_output(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, node)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let row = find_run(&app, &caller, &id).await?;
    let output = app.runs.node_output(&row.id, &node).await?;
    output.map(Json).ok_or_else(|| ApiError::not_found("the run has no such node, or it has given nothing yet"))
}

async fn list(State(app): State<Arc<App>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let query = query.only(&["status", "limit", "offset"])?;
    let status = match query.text("status") {
        None => None,
        Some(text) => Some(
            RunStatus::parse(text).ok_or_else(|| ApiError::bad_request(format!("{text:?} is no status of a run")))?,
        ),
    };
    let bounded =
        |number: Option<i64>, default| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default);
    let wanted = RunQuery {
        team: caller.team,
        status,
        limit: bounded(query.number("limit", 1, 1000)?, 100),
        offset: bounded(query.number("offset", 0, i64::from(u32::MAX))?, 0),
    };
    let runs = app.fleet.store.list_runs(&wanted).await?;
    Ok(Json(runs.iter().map(summary).collect()))
}

async fn named_run(app: &App, caller: &Caller, query: Query) -> Result<RunRow, ApiError> {
    let query = query.only(&["run_id"])?;
    let id = query.text("run_id").ok_or_else(|| ApiError::bad_request("run_id is required"))?;
    find_run(app, caller, id).await
}

/// The caller's run with this id.
pub(super) async fn find_run(app: &App, caller: &Caller, id: &str) -> Result<RunRow, ApiError> {
    let id = parse_run_id(id)?;
    app.runs.find(&caller.team, &id).await?.ok_or_else(|| ApiError::not_found("Run not found"))
}

pub(super) fn parse_run_id(id: &str) -> Result<RunId, ApiError> {
    id.parse().map_err(|error: crate::runs::RunIdError| ApiError::bad_request(error.to_string()))
}

/// Refuses calls in the name of a run that is over: they would make a sandbox that nobody ends.
pub(super) async fn refuse_ended(app: &App, caller: &Caller, id: &str) -> Result<(), ApiError> {
    let Ok(id) = id.parse() else { return Ok(()) };
    match app.runs.has_ended(&caller.team, &id).await? {
        true => Err(ApiError::conflict(format!("run {id} has ended"))),
        false => Ok(()),
    }
}
