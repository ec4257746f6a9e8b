//! `POST /sandboxes` and `POST /v2/sandboxes`: make a sandbox, or get the session's.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::{HeaderMap, StatusCode};

use super::acknowledged::make_for_answer;
use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;
use super::idempotency;
use super::new_sandbox::{Defaults, NewSandboxBody, V1, V2};
use super::sandbox_views::{ToldDomain, made};
use super::volume_mounts;
use crate::audit::Subject;
use crate::lifecycle::{CreateRefusal, Fleet, NewSandbox, Sandbox};

type Answer = Result<Response, ApiError>;

pub(super) async fn create_v1(
    state: State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    headers: HeaderMap,
    body: JsonBody,
) -> Answer {
    create(state, caller, &domain, &headers, body, V1).await
}

pub(super) async fn create_v2(
    state: State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    headers: HeaderMap,
    body: JsonBody,
) -> Answer {
    create(state, caller, &domain, &headers, body, V2).await
}

async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: &ToldDomain,
    headers: &HeaderMap,
    body: JsonBody,
    defaults: Defaults,
) -> Answer {
    let attempt = idempotency::Attempt::from_request(headers, &body.0, defaults)?;
    let mut body = body.parse_lenient::<NewSandboxBody>()?;
    let volumes = body.take_volumes();
    let mut wanted = body.checked(&app, &caller, defaults).await?;
    volume_mounts::attach(&app, &caller, volumes, &mut wanted).await?;
    // With a key of either kind, a client that hung up finds it by asking again.
    let (sandbox, receipt) = match attempt {
        Some(attempt) => (attempt.make_once(&app, wanted).await?, None),
        None if wanted.session_key.is_some() => (make(&app.fleet, wanted).await?, None),
        None => {
            let (sandbox, receipt) = make_for_answer(&app.fleet, wanted).await?;
            (sandbox, Some(receipt))
        }
    };
    volume_mounts::confirm(&app, &caller, &sandbox).await?;
    let subject = Subject::sandbox(sandbox.id().as_str());
    let answer = (StatusCode::CREATED, Extension(subject), Json(made(&domain.0, &sandbox.view().row))).into_response();
    Ok(match receipt {
        Some(receipt) => receipt.on(answer),
        None => answer,
    })
}

/// Makes what is asked for; with a session key, only if it is not there.
pub(super) async fn make(fleet: &Arc<Fleet>, wanted: NewSandbox) -> Result<Arc<Sandbox>, CreateRefusal> {
    match wanted.session_key.clone() {
        Some(key) => fleet.get_or_create(key, wanted).await,
        None => fleet.create(wanted).await,
    }
}
