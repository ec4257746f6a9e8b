//! Requests and starts builds, in the current form (`/v3/templates`, then `/v2/…/builds/{build}`) and in two older
//! ones. A request returns ids. Starting the build provides the steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{Accepted, ApiError, Caller, Empty, JsonBody};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::{Build, BuildStatus, Resource, TeamId, Template, TemplateKind};
use isopod_wire::build::{BuildSource, BuildSpec};
use isopod_wire::{Bytes, Limits};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::app::App;
use super::templates::check_team;
use crate::templates::{
    Catalogue, DEFAULT_TAG, FindError, Job, LegacyBuild, Reference, StartBuild, legacy_source, parse_tag, plan_steps,
};

/// `POST /v3/templates` and `POST /v2/templates`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestBuild {
    pub(super) name: Option<String>,
    pub(super) alias: Option<String>,
    pub(super) tags: Option<Vec<String>>,
    #[serde(rename = "teamID")]
    pub(super) team_id: Option<String>,
    pub(super) cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
    pub(super) min_free_disk_mb: Option<u64>,
}

/// `POST /templates`, of old clients that send a Dockerfile and push an image.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RequestBuildV1)]
pub(super) struct RequestLegacy {
    dockerfile: String,
    alias: Option<String>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    #[serde(rename = "teamID")]
    team_id: Option<String>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
}

/// The ids with which to start a build and to follow it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RequestedBuild)]
pub(super) struct Requested {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    public: bool,
    aliases: Vec<String>,
    names: Vec<String>,
    tags: Vec<String>,
}

/// A build that was started or cancelled.
pub(super) type Begun = Empty<202>;

type Answer = Result<Accepted<Requested>, ApiError>;

const MAX_TAGS: usize = 100;

pub(super) async fn request(State(app): State<Arc<App>>, caller: Caller, body: JsonBody<RequestBuild>) -> Answer {
    let wanted = body.parse()?;
    check_team(&caller, wanted.team_id.as_deref())?;
    let (template, build) = register(&app, &caller.team, wanted, None).await?;
    Ok(Accepted(requested(&template, &build)))
}

/// `POST /templates`
pub(super) async fn request_legacy(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<RequestLegacy>,
) -> Answer {
    let (wanted, legacy) = body.parse()?.split();
    check_team(&caller, wanted.team_id.as_deref())?;
    // A template without a name can be found only by its id. A generated name keeps it apart from the others.
    let name = wanted.alias.clone().unwrap_or_else(|| format!("unnamed-{}", &new_uuid()[..8]));
    let (template, build) =
        register(&app, &caller.team, RequestBuild { name: Some(name), ..wanted }, Some(legacy)).await?;
    Ok(Accepted(requested(&template, &build)))
}

/// `POST /templates/{id}`
pub(super) async fn rebuild_legacy(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<RequestLegacy>,
) -> Answer {
    let (template, _) = app.catalogue.find_built(&caller.team, &id).await?;
    let (wanted, legacy) = body.parse()?.split();
    check_team(&caller, wanted.team_id.as_deref())?;
    let build = insert(&app, &template, vec![DEFAULT_TAG.to_owned()], &wanted, Some(legacy)).await?;
    Ok(Accepted(requested(&template, &build)))
}

/// `POST /v2/templates/{id}/builds/{build}`
pub(super) async fn start(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
    body: JsonBody<StartBuild>,
) -> Result<Begun, ApiError> {
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    let mut wanted = body.parse()?;
    let (force, start, ready) = (wanted.force, wanted.start_cmd.take(), wanted.ready_cmd.take());
    let source = plan_steps(&app.catalogue, &caller.team, wanted).await?;
    let spec =
        BuildSpec { force, start_cmd: given(start), ready_cmd: given(ready), ..spec(&app, &caller, &build, source) };
    let permit = app.catalogue.builds.permit(&caller.team)?;
    begin(&app.catalogue, Job { team: caller.team, build, spec, context: None, _permit: permit }).await
}

/// `POST /templates/{id}/builds/{build}`: the Dockerfile was sent with the request for the build.
pub(super) async fn start_legacy(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
) -> Result<Begun, ApiError> {
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    let legacy = legacy_of(&build)?;
    let (context, args, force, permit) = match app.catalogue.waiting.take(&build.id) {
        Some(sent) => (Some(sent.context), sent.args, sent.force, sent.permit),
        None => (None, BTreeMap::new(), false, app.catalogue.builds.permit(&caller.team)?),
    };
    let source = legacy_source(&legacy, context.as_ref().map(|context| context.path.clone()), args);
    let (start_cmd, ready_cmd) = (given(legacy.start_cmd), given(legacy.ready_cmd));
    let spec = BuildSpec { force, start_cmd, ready_cmd, ..spec(&app, &caller, &build, source) };
    begin(&app.catalogue, Job { team: caller.team, build, spec, context, _permit: permit }).await
}

/// What was sent with the request for a build of version 1.
pub(super) fn legacy_of(build: &Build) -> Result<LegacyBuild, ApiError> {
    let legacy = build.legacy.as_deref().and_then(|text| serde_json::from_str(text).ok());
    legacy.ok_or_else(|| ApiError::bad_request("this build was requested without a Dockerfile"))
}

/// `POST /isopod/templates/builds/{build}/cancel`
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(build): Path<String>,
) -> Result<Begun, ApiError> {
    let known = app.catalogue.store.template_of_build(&caller.team, &build).await?;
    known.ok_or_else(|| no_such_build(&build))?;
    if app.catalogue.builds.cancel(&build) {
        return Ok(Empty);
    }
    app.catalogue.store.check_here(Resource::Build(&build)).await?;
    Err(ApiError::conflict("the build is not running"))
}

/// Returns the build of one of the caller's own templates.
pub(super) async fn find_build(
    catalogue: &Catalogue,
    caller: &Caller,
    id: &str,
    build: &str,
) -> Result<Build, ApiError> {
    let (template, _) = catalogue.find_own(&caller.team, id).await?;
    catalogue.store.build(&template.id, build).await?.ok_or_else(|| no_such_build(build))
}

fn no_such_build(build: &str) -> ApiError {
    let shown: String = build.chars().take(64).collect();
    ApiError::not_found(format!("build '{shown}' not found"))
}

/// Records a template with that name and a build of it.
pub(super) async fn register(
    app: &App,
    team: &TeamId,
    wanted: RequestBuild,
    legacy: Option<LegacyBuild>,
) -> Result<(Template, Build), ApiError> {
    let asked = wanted.name.as_deref().or(wanted.alias.as_deref());
    let asked = asked.ok_or_else(|| ApiError::bad_request("name is required"))?;
    let reference = Reference::parse(asked)?;
    let tags = checked_tags(reference.tag.clone(), wanted.tags.as_deref().unwrap_or_default())?;
    checked_limits(app.catalogue.default_limits, &wanted)?;
    let template = match (&reference.namespace, app.catalogue.find_own(team, asked).await) {
        // By its id, or by a name with the team as prefix.
        (_, Ok((template, _))) => template,
        (Some(space), Err(_)) => {
            return Err(ApiError::forbidden(format!("you cannot build templates in '{space}'")));
        }
        (None, Err(_)) => app.catalogue.ensure(team, &reference.name).await?,
    };
    if template.kind == TemplateKind::Snapshot {
        return Err(FindError::IsSnapshot(asked.to_owned()).into());
    }
    let build = insert(app, &template, tags, &wanted, legacy).await?;
    Ok((template, build))
}

async fn insert(
    app: &App,
    template: &Template,
    tags: Vec<String>,
    wanted: &RequestBuild,
    legacy: Option<LegacyBuild>,
) -> Result<Build, ApiError> {
    let build = Build {
        id: new_uuid(),
        template: template.id.clone(),
        status: BuildStatus::Requested,
        tags,
        limits: checked_limits(app.catalogue.default_limits, wanted)?,
        legacy: legacy.map(|legacy| json!(legacy).to_string()),
        node_template: None,
        size: None,
        memory_size: None,
        reason: None,
        created_at: Timestamp::now(),
        finished_at: None,
        snapshot: None,
    };
    app.catalogue.store.insert_build(&build).await?;
    Ok(build)
}

pub(super) fn requested(template: &Template, build: &Build) -> Requested {
    Requested {
        template_id: template.id.clone(),
        build_id: build.id.clone(),
        public: template.public,
        aliases: template.names.clone(),
        names: template.names.clone(),
        tags: build.tags.clone(),
    }
}

/// Returns the instructions for the node, without commands.
pub(super) fn spec(app: &App, caller: &Caller, build: &Build, source: BuildSource) -> BuildSpec {
    BuildSpec {
        build: build.id.clone(),
        source,
        force: false,
        cache_scope: (!app.settings.share_build_cache).then(|| caller.team.0.clone()),
        allow_host_base: app.settings.allow_host_base,
        start_cmd: None,
        ready_cmd: None,
        limits: build.limits,
        timeout: app.catalogue.builds.timeout(),
    }
}

pub(super) async fn begin(catalogue: &Catalogue, job: Job) -> Result<Begun, ApiError> {
    if catalogue.builds.start(job).await? {
        return Ok(Empty);
    }
    Err(already_started())
}

pub(super) fn already_started() -> ApiError {
    ApiError::conflict("this build was already started")
}

/// Returns the command unless it is blank.
pub(super) fn given(command: Option<String>) -> Option<String> {
    command.filter(|command| !command.trim().is_empty())
}

fn checked_tags(of_name: Option<String>, more: &[String]) -> Result<Vec<String>, ApiError> {
    let mut tags: Vec<String> = of_name.into_iter().collect();
    for tag in more {
        let tag = parse_tag(tag)?;
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    if tags.len() > MAX_TAGS {
        return Err(ApiError::bad_request(format!("a build can have at most {MAX_TAGS} tags")));
    }
    if tags.is_empty() {
        tags.push(DEFAULT_TAG.to_owned());
    }
    Ok(tags)
}

fn checked_limits(default: Limits, wanted: &RequestBuild) -> Result<Limits, ApiError> {
    let mut limits = default;
    if let Some(count) = wanted.cpu_count {
        limits.cpu_millis = count.saturating_mul(1000);
    }
    if let Some(size) = wanted.memory_mb {
        limits.memory = Bytes(size.saturating_mul(1 << 20));
    }
    // A sandbox without a limit can use the whole disk.
    if let (Some(least), Some(disk)) = (wanted.min_free_disk_mb, limits.disk) {
        limits.disk = Some(disk.max(Bytes(least.saturating_mul(1 << 20))));
    }
    limits.check().map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(limits)
}

impl RequestLegacy {
    fn split(self) -> (RequestBuild, LegacyBuild) {
        let wanted = RequestBuild {
            alias: self.alias,
            team_id: self.team_id,
            cpu_count: self.cpu_count,
            memory_mb: self.memory_mb,
            ..RequestBuild::default()
        };
        let legacy = LegacyBuild { dockerfile: self.dockerfile, start_cmd: self.start_cmd, ready_cmd: self.ready_cmd };
        (wanted, legacy)
    }
}
