//! `POST /isopod/templates/builds`: builds a Dockerfile with its context in one request. The body is the context as a
//! tar archive, and the query has the options. This route is not part of E2B's API: `isopod template build` uses it.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use axum::extract::State;
use isopod_api::{Accepted, ApiError, Archive, Caller, Param, Query, QueryParams};
use isopod_store::{BuildReason, Store};
use isopod_wire::build::{BuildSource, BuildSpec, DockerfileSource};

use super::app::App;
use super::template_build::{RequestBuild, Requested, begin, given, register, requested, spec};
use crate::templates::{Context, ContextError, Job, Part, Reservation, unpack_context};

pub(super) enum BuildContext {}

impl QueryParams for BuildContext {
    const PARAMS: &'static [Param] = &[
        Param::text("name").required(),
        Param::several("tag"),
        Param::text("dockerfile").about("a path inside the context; the default is e2b.Dockerfile"),
        Param::number("cpu_count", 1, 256),
        Param::number("memory_mb", 1, u32::MAX as i64),
        Param::text("start_cmd"),
        Param::text("ready_cmd"),
        Param::several("arg").about("KEY=VALUE"),
        Param::text("target"),
        Param::text("no_cache").about("1 or true"),
        Param::text("allow_host_base").about("1 or true: host files may replace an image of another version"),
    ];
}

const MAX_DOCKERFILE: u64 = 1 << 20;

pub(super) async fn build(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query<BuildContext>,
    Archive(body): Archive,
) -> Result<Accepted<Requested>, ApiError> {
    let args = query.all("arg").map(argument).collect::<Result<BTreeMap<_, _>, _>>()?;
    let file = query.text("dockerfile").unwrap_or("e2b.Dockerfile").to_owned();
    check_inside(&file)?;
    let wanted = RequestBuild {
        name: query.text("name").map(str::to_owned),
        tags: Some(query.all("tag").map(str::to_owned).collect()),
        cpu_count: query.number("cpu_count")?.and_then(|count| u32::try_from(count).ok()),
        memory_mb: query.number("memory_mb")?.map(i64::unsigned_abs),
        ..RequestBuild::default()
    };
    if wanted.name.is_none() {
        return Err(ApiError::bad_request("name is required"));
    }
    let permit = app.catalogue.builds.permit(&caller.team)?;
    let held = app.catalogue.uploads.hold(&app.catalogue.store, &caller.team).await?;
    // Receive the archive first, so that a request that breaks off leaves neither a template nor a build.
    let (archive, size) = app.catalogue.uploads.receive_part(body, &held).await?;
    let (template, build) = register(&app, &caller.team, wanted, None).await?;
    let context = app.catalogue.uploads.context(&build.id);
    let unpacked = {
        let (context, file) = (context.clone(), file.clone());
        unpack_part(archive, size, held, move |archive, held| {
            unpack(archive, &context, held)?;
            read_dockerfile(&context, &file).inspect_err(|_| {
                let _ = std::fs::remove_dir_all(&context);
            })
        })
        .await
    };
    let (text, held) = match unpacked {
        Ok(unpacked) => unpacked,
        Err(error) => return Err(fail(&app.catalogue.store, &build.id, error).await),
    };
    let source = BuildSource::Dockerfile(DockerfileSource {
        context: Some(context.clone()),
        name: file,
        text,
        args,
        target: query.text("target").map(str::to_owned),
        auth: None,
    });
    let usual = spec(&app, &caller, &build, source);
    let spec = BuildSpec {
        force: is_set(&query, "no_cache"),
        allow_host_base: usual.allow_host_base || is_set(&query, "allow_host_base"),
        start_cmd: given(query.text("start_cmd").map(str::to_owned)),
        ready_cmd: given(query.text("ready_cmd").map(str::to_owned)),
        ..usual
    };
    let answer = requested(&template, &build);
    let context = Some(Context { path: context, held });
    begin(&app.catalogue, Job { team: caller.team, build, spec, context, _permit: permit }).await?;
    Ok(Accepted(answer))
}

pub(super) fn is_set<P: QueryParams>(query: &Query<P>, name: &str) -> bool {
    matches!(query.text(name), Some("1" | "true"))
}

/// Records a build that cannot start as failed, so that lists show it.
async fn fail(store: &Store, build: &str, error: ApiError) -> ApiError {
    let reason = BuildReason { message: error.message().to_owned(), step: None };
    if let Err(error) = store.fail_build(build, &reason).await {
        tracing::warn!(build, error = isopod_wire::error_chain(&error), "could not record that a build failed");
    }
    error
}

/// Runs `unpack` in a thread of its own, and removes the archive afterwards.
pub(super) async fn unpack_part<T: Send + 'static>(
    archive: Part,
    size: u64,
    held: Reservation,
    unpack: impl FnOnce(&Path, &Reservation) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Reservation), ApiError> {
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = unpack(archive.path(), &held)?;
        drop(archive);
        held.give_back_some(size);
        Ok((unpacked, held))
    });
    unpacking.await.unwrap_or_else(|_| Err(ApiError::bad_request("the context could not be read")))
}

pub(super) fn unpack(archive: &Path, context: &Path, held: &Reservation) -> Result<(), ApiError> {
    Ok(unpack_context(archive, context, MAX_UNPACKED, &|bytes| held.take(bytes))?)
}

const MAX_UNPACKED: u64 = 16 << 30;

/// Does not follow links, because a link could lead anywhere on this machine.
fn read_dockerfile(context: &Path, file: &str) -> Result<String, ApiError> {
    let missing = || ApiError::bad_request(format!("the context has no file {file:?}"));
    let mut place = context.to_owned();
    for part in Path::new(file).components() {
        place.push(part);
        let found = std::fs::symlink_metadata(&place).map_err(|_| missing())?;
        if found.is_symlink() {
            return Err(ApiError::bad_request(format!("{file:?} is a link; the Dockerfile must be a file")));
        }
    }
    let found = std::fs::symlink_metadata(&place).map_err(|_| missing())?;
    if !found.is_file() || found.len() > MAX_DOCKERFILE {
        return Err(ApiError::bad_request(format!("{file:?} is not a file of at most {MAX_DOCKERFILE} bytes")));
    }
    let bytes = std::fs::read(&place).map_err(|source| ContextError::Disk { path: place, source })?;
    String::from_utf8(bytes).map_err(|_| ApiError::bad_request(format!("{file:?} is not UTF-8 text")))
}

fn check_inside(file: &str) -> Result<(), ApiError> {
    let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if inside { Ok(()) } else { Err(ApiError::bad_request("dockerfile must be a path inside the context")) }
}

pub(super) fn argument(text: &str) -> Result<(String, String), ApiError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ApiError::bad_request(format!("arg: {text:?} is not KEY=VALUE"))),
    }
}
