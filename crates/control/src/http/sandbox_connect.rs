//! `POST …/connect` (two versions) and `POST …/resume`: use a sandbox, running it again if it is paused.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;
use super::new_sandbox::{V1, V2, checked_timeout};
use super::sandbox_views::{ToldDomain, made};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConnectBody {
    timeout: Option<i64>,
    memory: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResumeBody {
    timeout: Option<i64>,
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

type Answer = Result<(StatusCode, Json<Value>), ApiError>;

pub(super) async fn connect_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    Path(id): Path<String>,
    body: JsonBody,
) -> Answer {
    let body: ConnectBody = body.parse_lenient()?;
    if body.timeout.is_none() {
        return Err(ApiError::bad_request("timeout is required"));
    }
    let timeout = checked_timeout(body.timeout, &app.fleet)?.unwrap_or(V1.timeout);
    connect(&app, &caller, &domain, &id, timeout, body.memory, None).await
}

pub(super) async fn connect_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    Path(id): Path<String>,
    body: JsonBody,
) -> Answer {
    let body: ConnectBody = body.parse_lenient()?;
    let timeout = checked_timeout(body.timeout, &app.fleet)?.unwrap_or(V2.timeout);
    connect(&app, &caller, &domain, &id, timeout, body.memory, None).await
}

pub(super) async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    Path(id): Path<String>,
    body: JsonBody,
) -> Answer {
    let body: ResumeBody = body.parse_lenient()?;
    let timeout = checked_timeout(body.timeout, &app.fleet)?.unwrap_or(V1.timeout);
    let sandbox = caller.sandbox(&app.fleet, &id).await?;
    // Unlike connect, it is only for what is paused.
    if sandbox.view().life.is_some() {
        return Err(ApiError::conflict("the sandbox is already running"));
    }
    let (_, answer) = connect(&app, &caller, &domain, &id, timeout, body.memory, body.auto_pause).await?;
    Ok((StatusCode::CREATED, answer))
}

async fn connect(
    app: &App,
    caller: &Caller,
    domain: &ToldDomain,
    id: &str,
    timeout: Duration,
    memory: Option<bool>,
    auto_pause: Option<bool>,
) -> Answer {
    let sandbox = caller.sandbox(&app.fleet, id).await?;
    let resumed = sandbox.connect(timeout, memory.unwrap_or(true), auto_pause).await?;
    let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(made(&domain.0, &sandbox.view().row))))
}
