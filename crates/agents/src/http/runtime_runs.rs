//! `/runtime`: runs of workflows. Starts, shows and lists them. [`super::runtime_commands`] controls them and
//! [`super::runtime_watch`] follows them.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Path, State};
use http::{Request, header};
use isopod_api::{
    ApiError, Caller, DescribeInput, Description, Listing, Location, MaxBody, Needs::TeamKey, Param, Query,
    QueryParams, Routes, changes, get, post, reads,
};
use isopod_store::{Owner, RunId, RunQuery, RunRow, RunStatus};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::runtime::{ClientId, RUN_ID};
use super::{runtime_agents, runtime_commands, runtime_watch};
use crate::Agents;
use crate::runs::{Document, RunSummary, Workflow, summary};
use crate::sessions::RelPath;

pub(super) fn routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route(
            "/runtime/start",
            [post(changes(TeamKey, "run.start"), "Start a workflow", start).may_refuse(&[404, 409])],
        )
        .route("/runtime/state", [get(reads(TeamKey), "Everything about a run", state).may_refuse(&[404])])
        .route(
            "/runtime/signatures",
            [get(reads(TeamKey), "What agents of a run signed their thoughts with", signatures).may_refuse(&[404])],
        )
        .route("/runtime/runs", [get(reads(TeamKey), "List runs, the newest first", list)])
        .route("/runtime/{run_id}/artifact/{node}", [get(reads(TeamKey), "What a node gave", node_output)])
        .route(
            "/runtime/{run_id}/agent/{node}/invoke",
            [post(reads(TeamKey), "What an agent of a run would be sent", runtime_agents::invocation)],
        )
        .route(
            "/plan",
            [post(changes(TeamKey, "run.plan"), "Ask the agent service for a workflow", runtime_agents::plan)
                .needs_body()
                .may_refuse(&[422, 502])],
        )
        .route("/runtime/{run_id}/events", [get(reads(TeamKey), "Follow a run to its end", runtime_watch::events)])
        .route(
            "/ws/runtime/{run_id}",
            [get(reads(TeamKey), "Follow a run over a WebSocket", runtime_watch::socket).never_refuses(404)],
        )
        .merge(command_routes())
        .path_parameter(RUN_ID)
        .located(Location::Named("run"), "run_id")
}

/// They reach a run only on the server that runs it.
fn command_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/runtime/{run_id}/stop", [post(changes(TeamKey, "run.stop"), "End a run", runtime_commands::stop)])
        .route(
            "/runtime/{run_id}/resume",
            [post(
                changes(TeamKey, "run.resume"),
                "Let everything go on that waits for a person",
                runtime_commands::resume,
            )],
        )
        .route(
            "/runtime/{run_id}/approve",
            [post(
                changes(TeamKey, "run.approve"),
                "Say yes or no to what waits for a person",
                runtime_commands::approve,
            )],
        )
        .may_refuse(&[409, 421])
}

pub(super) enum NamedRun {}

impl QueryParams for NamedRun {
    const PARAMS: &'static [Param] = &[Param::text("run_id").required()];
}

pub(super) enum ListRuns {}

impl QueryParams for ListRuns {
    const PARAMS: &'static [Param] = &[
        Param::one_of("status", &["idle", "running", "completed", "failed", "awaitingapproval"]),
        Param::number("limit", 1, 1000),
        Param::number("offset", 0, u32::MAX as i64),
    ];
}

/// The result of a command to a run.
#[derive(Serialize, ToSchema)]
pub(super) struct RunCommandResult {
    success: bool,
    run_id: String,
}

impl RunCommandResult {
    pub(super) fn new(run: &RunId) -> Self {
        Self { success: true, run_id: run.as_str().to_owned() }
    }
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

impl DescribeInput for WorkflowText {
    fn describe(operation: &mut Description) {
        let schema = operation.schema_of::<Document>();
        operation.body(["application/json", "application/yaml"], schema, true);
        operation.may_refuse(&[400, 408, 413]);
    }
}

async fn start(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    text: WorkflowText,
) -> Result<Json<RunCommandResult>, ApiError> {
    let workflow = Workflow::parse(&text.0)?;
    app.runs.check(&workflow)?;
    let run = RunId::random();
    attach(&app, &caller, &client, &run, &workflow.settings.attached_files).await?;
    app.runs.start(run.clone(), caller.team, client, workflow).await?;
    Ok(Json(RunCommandResult::new(&run)))
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

async fn state(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    query: Query<NamedRun>,
) -> Result<Json<Value>, ApiError> {
    let row = named_run(&app, &caller, &query).await?;
    Ok(Json(app.runs.state(&row).await?))
}

async fn signatures(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    query: Query<NamedRun>,
) -> Result<Json<Value>, ApiError> {
    let row = named_run(&app, &caller, &query).await?;
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

async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    query: Query<ListRuns>,
) -> Result<Listing<RunSummary>, ApiError> {
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
        limit: bounded(query.number("limit")?, 100),
        offset: bounded(query.number("offset")?, 0),
    };
    let runs = app.fleet.store.list_runs(&wanted).await?;
    Ok(Listing(runs.iter().map(summary).collect()))
}

async fn named_run(app: &Agents, caller: &Caller, query: &Query<NamedRun>) -> Result<RunRow, ApiError> {
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
