//! `POST /sandboxes` and `POST /v2/sandboxes`: create a sandbox, or return the session's.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse as _;
use isopod_api::{ApiError, Caller, Created, JsonBody, Prepared, audit::Subject};
use isopod_store::StoreError;

use super::acknowledged::create_acknowledged;
use super::app::App;
use super::errors::advise_files_only;
use super::execution_mount;
use super::idempotency::{Attempt, IdempotencyKey};
use super::new_sandbox::{Defaults, NewSandboxBody, NewSandboxV2, V1, V2};
use super::sandbox_views::{CreatedSandbox, SandboxDomain, created_sandbox};
use super::volume_mounts;
use crate::lifecycle::{CreateRefusal, Fleet, NewSandbox, Sandbox};

type Answer = Result<Prepared<Created<CreatedSandbox>>, ApiError>;

pub(super) async fn create_v1(
    state: State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    key: IdempotencyKey,
    body: JsonBody<NewSandboxBody>,
) -> Answer {
    let attempt = Attempt::of(key, &body.0, V1);
    create(state, caller, &domain, attempt, body.parse()?, V1).await.map_err(advise_files_only)
}

pub(super) async fn create_v2(
    state: State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    key: IdempotencyKey,
    body: JsonBody<NewSandboxV2>,
) -> Answer {
    let attempt = Attempt::of(key, &body.0, V2);
    create(state, caller, &domain, attempt, body.parse()?.0, V2).await.map_err(advise_files_only)
}

async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: &SandboxDomain,
    attempt: Option<Attempt>,
    mut body: NewSandboxBody,
    defaults: Defaults,
) -> Answer {
    let volumes = body.take_volumes();
    let mut wanted = body.checked(&app, &caller, defaults).await?;
    let warning = execution_mount::attach(&app, &mut wanted)?;
    volume_mounts::attach(&app, &caller, volumes, &mut wanted).await?;
    let has_key = attempt.is_some() || wanted.session_key.is_some();
    // While its template is being built nothing is begun: a client that hangs up then leaves nothing.
    if has_key && !has_begun(&app.fleet, attempt.as_ref(), &wanted).await? {
        app.fleet.wait_to_create(&wanted).await?;
    }
    // With an idempotency or session key, a client that hung up finds the sandbox by repeating the request.
    let (sandbox, receipt) = match attempt {
        Some(attempt) => (attempt.create_once(&app, wanted).await?, None),
        None if wanted.session_key.is_some() => (make(&app.fleet, wanted).await?, None),
        None => {
            let (sandbox, receipt) = create_acknowledged(&app.fleet, wanted).await?;
            (sandbox, Some(receipt))
        }
    };
    volume_mounts::confirm(&app, &caller, &sandbox).await?;
    if let Some(warning) = warning {
        app.fleet.warn(sandbox.id(), &warning);
    }
    let subject = Subject::sandbox(sandbox.id().as_str());
    let answer = (Extension(subject), Created(created_sandbox(&domain.0, &sandbox.view().row))).into_response();
    Ok(Prepared::new(match receipt {
        Some(receipt) => receipt.on(answer),
        None => answer,
    }))
}

/// Whether an earlier request with the same key has created the sandbox or is creating it.
async fn has_begun(fleet: &Fleet, attempt: Option<&Attempt>, wanted: &NewSandbox) -> Result<bool, StoreError> {
    if let Some(attempt) = attempt
        && fleet.store.has_idempotency_key(&wanted.team, &attempt.key).await?
    {
        return Ok(true);
    }
    match &wanted.session_key {
        Some(key) => Ok(fleet.store.find_session(&wanted.team, key).await?.is_some()),
        None => Ok(false),
    }
}

/// Creates the sandbox. With a session key, only if the session has none yet.
pub(super) async fn make(fleet: &Arc<Fleet>, wanted: NewSandbox) -> Result<Arc<Sandbox>, CreateRefusal> {
    match wanted.session_key.clone() {
        Some(key) => fleet.get_or_create(key, wanted).await,
        None => fleet.create(wanted).await,
    }
}
