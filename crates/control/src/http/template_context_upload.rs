//! `PUT /isopod/templates/{id}/builds/{build}/context`: the files that the Dockerfile of a requested build copies. The body
//! is a tar archive. E2B's older CLI leaves them to `docker`, and Isopod's stand-in for `docker` sends them here. This route
//! is not part of E2B's API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Archive, Caller, Empty, NoContent, Param, Query, QueryParams};
use isopod_store::{Build, BuildStatus};

use super::app::App;
use super::template_build::{already_started, find_build, legacy_of};
use super::template_context::{argument, is_set, unpack, unpack_part};
use crate::templates::{Context, WaitingContext};

pub(super) enum ContextOptions {}

impl QueryParams for ContextOptions {
    const PARAMS: &'static [Param] =
        &[Param::several("arg").about("KEY=VALUE"), Param::text("no_cache").about("1 or true")];
}

pub(super) async fn upload(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
    query: Query<ContextOptions>,
    Archive(body): Archive,
) -> Result<NoContent, ApiError> {
    let args = query.all("arg").map(argument).collect::<Result<BTreeMap<_, _>, _>>()?;
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    legacy_of(&build)?;
    if build.status != BuildStatus::Requested {
        return Err(already_started());
    }
    let permit = app.catalogue.builds.permit(&caller.team)?;
    let held = app.catalogue.uploads.hold(&app.catalogue.store, &caller.team).await?;
    let (archive, size) = app.catalogue.uploads.receive_part(body, &held).await?;
    let force = is_set(&query, "no_cache");
    // A client that leaves now must not leave the directory behind.
    let kept = tokio::spawn(async move {
        let path = app.catalogue.uploads.waiting_context(&build.id);
        let into = path.clone();
        let ((), held) = unpack_part(archive, size, held, move |archive, held| unpack(archive, &into, held)).await?;
        let context = Context { path, held };
        keep(&app, &build, WaitingContext { context, args, force, permit, arrived: Instant::now() }).await
    });
    kept.await.unwrap_or_else(|_| Err(ApiError::bad_request("the context could not be read")))
}

async fn keep(app: &App, build: &Build, waiting: WaitingContext) -> Result<NoContent, ApiError> {
    if app.catalogue.keep_context(&build.template, &build.id, waiting).await? {
        return Ok(Empty);
    }
    Err(already_started())
}
