//! `POST …/connect` (two versions) and `POST …/resume`: connect to a sandbox, and resume it if it is paused.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, CreatedOrFound, JsonBody};
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::live_sandbox;
use super::new_sandbox::{V1, V2, checked_timeout};
use super::sandbox_views::{CreatedSandbox, SandboxDomain, created_sandbox};

/// The body of version 1, where the timeout is required.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Connect)]
pub(super) struct ConnectV1 {
    /// In seconds.
    #[schema(minimum = 0, maximum = 86400)]
    timeout: i64,
    /// Whether to restore the sandbox's memory.
    memory: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectV2 {
    /// In seconds.
    #[schema(minimum = 0, maximum = 86400)]
    timeout: Option<i64>,
    /// Whether to restore the sandbox's memory.
    memory: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Resume)]
pub(super) struct ResumeBody {
    /// In seconds.
    #[schema(minimum = 0, maximum = 86400)]
    timeout: Option<i64>,
    /// Whether to restore the sandbox's memory.
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

type Answer = Result<CreatedOrFound<CreatedSandbox>, ApiError>;

pub(super) async fn connect_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    Path(id): Path<String>,
    body: JsonBody<ConnectV1>,
) -> Answer {
    let body = body.parse()?;
    let timeout = checked_timeout(Some(body.timeout), &app.fleet)?.unwrap_or(V1.timeout);
    connect(&app, &caller, &domain, &id, timeout, body.memory, None).await
}

pub(super) async fn connect_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    Path(id): Path<String>,
    body: JsonBody<ConnectV2>,
) -> Answer {
    let body = body.parse()?;
    let timeout = checked_timeout(body.timeout, &app.fleet)?.unwrap_or(V2.timeout);
    connect(&app, &caller, &domain, &id, timeout, body.memory, None).await
}

pub(super) async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    Path(id): Path<String>,
    body: JsonBody<ResumeBody>,
) -> Result<Created<CreatedSandbox>, ApiError> {
    let body = body.parse()?;
    let timeout = checked_timeout(body.timeout, &app.fleet)?.unwrap_or(V1.timeout);
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    // Unlike connect, resume is only for paused sandboxes.
    if sandbox.view().life.is_some() {
        return Err(ApiError::conflict("the sandbox is already running"));
    }
    match connect(&app, &caller, &domain, &id, timeout, body.memory, body.auto_pause).await? {
        CreatedOrFound::Created(sandbox) | CreatedOrFound::Found(sandbox) => Ok(Created(sandbox)),
    }
}

async fn connect(
    app: &App,
    caller: &Caller,
    domain: &SandboxDomain,
    id: &str,
    timeout: Duration,
    memory: Option<bool>,
    auto_pause: Option<bool>,
) -> Answer {
    let sandbox = live_sandbox(&app.fleet, caller, id).await?;
    let resumed = sandbox.connect(timeout, memory.unwrap_or(true), auto_pause).await?;
    let shown = created_sandbox(&domain.0, &sandbox.view().row);
    Ok(if resumed { CreatedOrFound::Created(shown) } else { CreatedOrFound::Found(shown) })
}
