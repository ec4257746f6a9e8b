//! `/runtime`: runs of workflows. Starts, shows and lists them. [`super::runtime_commands`] controls them and
//! [`super::runtime_watch`] follows them.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Path, State};
use http::{Request, header};
use isopod_control::http::Needs::TeamKey;
use isopod_control::http::{ApiError, Caller, MaxBody, Query, Routes, changes, get, post, reads};
use isopod_store::{Owner, RunId, RunQuery, RunRow, RunStatus};
use serde_json::{Value, json};

use super::runtime::ClientId;
use super::{runtime_commands, runtime_watch};
use crate::Agents;
use crate::runs::{Workflow, summary};
use crate::sessions::RelPath;

pub(super) fn routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/runtime/start", [post(changes(TeamKey, "run.start"), start)])
        .route("/runtime/state", [get(reads(TeamKey), state)])
        .route("/runtime/signatures", [get(reads(TeamKey), signatures)])
        .route("/runtime/runs", [get(reads(TeamKey), list)])
        .route("/runtime/{run_id}/stop", [post(changes(TeamKey, "run.stop"), runtime_commands::stop)])
        .route("/runtime/{run_id}/resume", [post(changes(TeamKey, "run.resume"), runtime_commands::resume)])
        .route("/runtime/{run_id}/approve", [post(changes(TeamKey, "run.approve"), runtime_commands::approve)])
        .route("/runtime/{run_id}/artifact/{node}", [get(reads(TeamKey), node_output)])
        .route("/runtime/{run_id}/events", [get(reads(TeamKey), runtime_watch::events)])
        .route("/ws/runtime/{run_id}", [get(reads(TeamKey), runtime_watch::socket)])
}

/// The text of a workflow, in JSON or YAML.
pub(super) struct WorkflowText(String);

impl<S: Sync> FromRequest<S> for WorkflowText {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_text = kind.is_empty() || kind == "text/plain" || kind.ends_with("json") || kind.ends_with("yaml");
        if !is_text || parts.headers.contains_key(header::CONTENT_ENCODING) {
            return Err(ApiError::bad_request("a workflow must be JSON or YAML, and not compressed"));
        }
        let limit = MaxBody::of(&parts);
        let bytes = to_bytes(body, limit).await.map_err(|_| ApiError::too_large(limit))?;
        let text = String::from_utf8(bytes.into()).map_err(|_| ApiError::bad_request("a workflow must be UTF-8"))?;
        Ok(Self(text))
    }
}

async fn start(
    State(app): State<Arc<Agents>>,
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
async fn attach(app: &Agents, caller: &Caller, client: &str, run: &RunId, names: &[String]) -> Result<(), ApiError> {
    if names.is_empty() {
        return Ok(());
    }
    let bad = |error: &dyn std::error::Error| ApiError::bad_request(error.to_string());
    let paths = names.iter().map(|name| RelPath::parse(name)).collect::<Result<Vec<_>, _>>();
    let owner = Owner::run(run.as_str()).map_err(|error| bad(&error))?;
    app.sessions.attach_library(&caller.team, &owner, client, &paths.map_err(|error| bad(&error))?).await?;
    Ok(())
}

async fn state(State(app): State<Arc<Agents>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let row = named_run(&app, &caller, query).await?;
    Ok(Json(app.runs.state(&row).await?))
}

async fn signatures(State(app): State<Arc<Agents>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let row = named_run(&app, &caller, query).await?;
    Ok(Json(app.runs.signatures(&row.id).await?))
}

/// The output of a node.
async fn node_output(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((id, node)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let row = find_run(&app, &caller, &id).await?;
    let output = app.runs.node_output(&row.id, &node).await?;
    output.map(Json).ok_or_else(|| ApiError::not_found("the run has no such node, or the node has no output yet"))
}

async fn list(State(app): State<Arc<Agents>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let query = query.only(&["status", "limit", "offset"])?;
    let status = match query.text("status") {
        None => None,
        Some(text) => Some(
            RunStatus::parse(text)
                .ok_or_else(|| ApiError::bad_request(format!("{text:?} is not a status of a run")))?,
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

async fn named_run(app: &Agents, caller: &Caller, query: Query) -> Result<RunRow, ApiError> {
    let query = query.only(&["run_id"])?;
    let id = query.text("run_id").ok_or_else(|| ApiError::bad_request("run_id is required"))?;
    find_run(app, caller, id).await
}

/// The caller's run with this id.
pub(super) async fn find_run(app: &Agents, caller: &Caller, id: &str) -> Result<RunRow, ApiError> {
    let id = parse_run_id(id)?;
    app.runs.find(&caller.team, &id).await?.ok_or_else(|| ApiError::not_found("Run not found"))
}

pub(super) fn parse_run_id(id: &str) -> Result<RunId, ApiError> {
    id.parse().map_err(|error: isopod_store::RunIdError| ApiError::bad_request(error.to_string()))
}

/// Refuses calls for an ended run, because they would create a sandbox that nothing removes.
pub(super) async fn refuse_ended(app: &Agents, caller: &Caller, id: &str) -> Result<(), ApiError> {
    let Ok(id) = id.parse() else { return Ok(()) };
    match app.runs.has_ended(&caller.team, &id).await? {
        true => Err(ApiError::conflict(format!("run {id} has ended"))),
        false => Ok(()),
    }
}
