//! `POST …/fork` (two versions): create copies of a running sandbox. They differ in how long copies live by default.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use isopod_api::{ApiError, Caller, Created, JsonBody, Prepared, audit::Subject, until_answered};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::acknowledged::remove;
use super::app::App;
use super::find_sandbox::live_sandbox;
use super::new_sandbox::{V1, V2, checked_timeout};
use super::sandbox_snapshot::done_perhaps;
use super::sandbox_views::{CreatedSandbox, SandboxDomain, created_sandbox};
use super::volume_mounts;
use crate::lifecycle::{ActError, Sandbox, WantedCopies};

const MAX_COPIES: i64 = 20;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Fork)]
pub(super) struct ForkBody {
    /// Of each copy, in seconds.
    #[schema(minimum = 0, maximum = 86400)]
    timeout: Option<i64>,
    /// How many copies to create.
    #[schema(minimum = 1, maximum = 20)]
    count: Option<i64>,
    /// Whether copies have the processes and their memory too. True by default. Otherwise, copies start from its files.
    memory: Option<bool>,
}

/// A copy, or why there is none. Exactly one of the fields is set.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ForkedSandbox)]
pub(super) struct CopyView {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sandbox: Option<CreatedSandbox>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<CopyError>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ForkError)]
struct CopyError {
    /// The HTTP status that a create would have returned.
    code: u16,
    message: String,
}

type Copies = Vec<Result<Arc<Sandbox>, ApiError>>;
type Answer = Result<Prepared<Created<Vec<CopyView>>>, ApiError>;

pub(super) async fn fork_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    Path(id): Path<String>,
    body: JsonBody<ForkBody>,
) -> Answer {
    let wanted = checked_copies(&app, body.parse()?, V1.timeout)?;
    fork(app, caller, domain, id, wanted).await
}

pub(super) async fn fork_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    Path(id): Path<String>,
    body: JsonBody<ForkBody>,
) -> Answer {
    let wanted = checked_copies(&app, body.parse()?, V2.timeout)?;
    fork(app, caller, domain, id, wanted).await
}

fn checked_copies(app: &App, body: ForkBody, default_timeout: Duration) -> Result<WantedCopies, ApiError> {
    let timeout = checked_timeout(body.timeout, &app.fleet)?.unwrap_or(default_timeout);
    Ok(WantedCopies { count: checked_count(body.count)?, timeout, with_memory: body.memory.unwrap_or(true) })
}

async fn fork(app: Arc<App>, caller: Caller, domain: SandboxDomain, id: String, wanted: WantedCopies) -> Answer {
    let source = live_sandbox(&app.fleet, &caller, &id).await?;
    let making = copy(Arc::clone(&app), caller, Arc::clone(&source), wanted);
    // A client that hangs up before it has the whole response cannot know the copies.
    let made = until_answered(making, |copies: Copies| async move {
        for sandbox in copies.into_iter().flatten() {
            remove(&sandbox).await;
        }
    });
    let (copies, receipt) = made.await.unwrap_or(Err(ActError::NodePanicked)).map_err(|error| match error {
        // E2B's clients show this text.
        ActError::Refused(refusal) => ApiError::from(refusal),
        error => done_perhaps(error.into()),
    })?;
    let shown: Vec<CopyView> = copies.into_iter().map(|copy| shown(&domain.0, copy)).collect();
    let subject = Subject::sandbox(source.id().as_str());
    Ok(Prepared::new(receipt.on((Extension(subject), Created(shown)).into_response())))
}

async fn copy(app: Arc<App>, caller: Caller, source: Arc<Sandbox>, wanted: WantedCopies) -> Result<Copies, ActError> {
    let mut copies = Vec::with_capacity(wanted.count);
    for made in app.fleet.fork(&source, &wanted).await? {
        copies.push(match made {
            Ok(sandbox) => volume_mounts::confirm(&app, &caller, &sandbox).await.map(|()| sandbox),
            Err(refusal) => Err(refusal.into()),
        });
    }
    Ok(copies)
}

fn checked_count(count: Option<i64>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        count @ 1..=MAX_COPIES => Ok(usize::try_from(count).unwrap_or(1)),
        _ => Err(ApiError::bad_request(format!("count must be 1 to {MAX_COPIES}"))),
    }
}

fn shown(domain: &str, copy: Result<Arc<Sandbox>, ApiError>) -> CopyView {
    match copy {
        Ok(sandbox) => CopyView { sandbox: Some(created_sandbox(domain, &sandbox.view().row)), error: None },
        Err(error) => {
            let error = CopyError { code: error.status().as_u16(), message: error.message().to_owned() };
            CopyView { sandbox: None, error: Some(error) }
        }
    }
}
