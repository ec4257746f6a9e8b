//! How the API shows templates: the team's own, and the built-in ones.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Listing, Param, Query, QueryParams};
use isopod_store::clock::Timestamp;
use isopod_store::{Build, BuildStatus, Template};
use isopod_wire::ENVD_VERSION;
use isopod_wire::node::{TemplateInfo, TemplateState};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use crate::lifecycle::Fleet;
use crate::templates::FindError;

pub(super) enum ListTemplates {}

impl QueryParams for ListTemplates {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[Param::text("teamID").about("must be the key's team"), LIMIT, NEXT];
}

pub(super) enum GetTemplate {}

impl QueryParams for GetTemplate {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[LIMIT, NEXT];
}

/// Clients request pages, but one page has everything, so the values are ignored.
const LIMIT: Param = Param::number("limit", 1, 100);
const NEXT: Param = Param::text("nextToken");

/// A template. Its numbers are those of the build with the default tag, or of the latest build if there is none.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Template)]
pub(super) struct TemplateView {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    public: bool,
    aliases: Vec<String>,
    names: Vec<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    last_spawned_at: Option<Timestamp>,
    spawn_count: i64,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    /// Always null: templates belong to teams, not to people.
    #[schema(value_type = Option<Object>)]
    created_by: Option<()>,
    build_count: usize,
    envd_version: &'static str,
    build_status: ShownBuildStatus,
    is_default: bool,
}

/// A template with all its builds.
#[derive(Serialize, ToSchema)]
pub(super) struct TemplateDetail {
    #[serde(flatten)]
    template: TemplateView,
    builds: Vec<BuildView>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Build)]
struct BuildView {
    #[serde(rename = "buildID")]
    build_id: String,
    status: ShownBuildStatus,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    created_at: Timestamp,
    updated_at: Timestamp,
    finished_at: Option<Timestamp>,
    envd_version: &'static str,
    size_bytes: Option<i64>,
    tags: Vec<String>,
    /// Why the build failed.
    reason: Option<String>,
}

/// The status of a build in E2B's terms.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = BuildStatus)]
pub(super) enum ShownBuildStatus {
    Waiting,
    Building,
    Ready,
    Error,
}

/// The template that an alias stands for.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TemplateAlias)]
pub(super) struct AliasView {
    #[serde(rename = "templateID")]
    template_id: String,
    public: bool,
}

const NO_BUILD: &str = "00000000-0000-0000-0000-000000000000";

/// `GET /templates`: lists the team's own templates first.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query<ListTemplates>,
) -> Result<Listing<TemplateView>, ApiError> {
    check_team(&caller, query.text("teamID"))?;
    let mut shown = Vec::new();
    for template in app.catalogue.store.list_templates(&caller.team).await? {
        let builds = app.catalogue.store.list_builds(&template.id).await?;
        shown.push(listed(&app, template, &builds).await?);
    }
    shown.extend(built_in(&app.fleet).await?);
    Ok(Listing(shown))
}

/// `GET /default-templates`: lists the built-in templates.
pub(super) async fn list_default(State(app): State<Arc<App>>, _: Caller) -> Result<Listing<TemplateView>, ApiError> {
    Ok(Listing(built_in(&app.fleet).await?))
}

/// `GET /templates/aliases/{alias}`
pub(super) async fn alias(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(alias): Path<String>,
) -> Result<Json<AliasView>, ApiError> {
    match app.catalogue.find(&caller.team, &alias).await {
        Ok((template, _)) => Ok(Json(AliasView { template_id: template.id, public: template.public })),
        Err(FindError::NotFound(_)) => {
            let template = find_built_in(&app.fleet, &alias).await?;
            Ok(Json(AliasView { template_id: template.name, public: true }))
        }
        Err(error) => Err(error.into()),
    }
}

/// `GET /templates/{id}`, with all builds.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    _: Query<GetTemplate>,
) -> Result<Json<TemplateDetail>, ApiError> {
    let template = match app.catalogue.find(&caller.team, &id).await {
        Ok((template, _)) => template,
        Err(FindError::NotFound(_)) => {
            let template = described(&app.fleet, find_built_in(&app.fleet, &id).await?).await?;
            return Ok(Json(TemplateDetail { template, builds: Vec::new() }));
        }
        Err(error) => return Err(error.into()),
    };
    let builds = app.catalogue.store.list_builds(&template.id).await?;
    let tags = app.catalogue.store.list_tags(&template.id).await?;
    let template = listed(&app, template, &builds).await?;
    let builds = builds.into_iter().map(|build| {
        let named = tags.iter().filter(|tag| tag.build == build.id).map(|tag| tag.tag.clone()).collect();
        build_shown(build, named)
    });
    Ok(Json(TemplateDetail { template, builds: builds.collect() }))
}

fn build_shown(build: Build, tags: Vec<String>) -> BuildView {
    BuildView {
        build_id: build.id,
        status: build.status.into(),
        cpu_count: build.limits.whole_cpus(),
        memory_mb: build.limits.memory.as_mib(),
        disk_size_mb: build.limits.disk.map_or(0, |disk| disk.as_mib()),
        created_at: build.created_at,
        updated_at: build.finished_at.unwrap_or(build.created_at),
        finished_at: build.finished_at,
        envd_version: ENVD_VERSION,
        size_bytes: build.size,
        tags,
        reason: build.reason.map(|reason| reason.message),
    }
}

async fn listed(app: &App, template: Template, builds: &[Build]) -> Result<TemplateView, ApiError> {
    let store = &app.catalogue.store;
    let tagged = store.tagged_build(&template.id, crate::templates::DEFAULT_TAG).await?;
    let build = tagged.as_ref().or(builds.first());
    let limits = build.map_or(app.fleet.sandbox_limits(), |build| build.limits);
    let spawns = store.spawns_of(&template.id).await?;
    Ok(TemplateView {
        template_id: template.id,
        build_id: build.map_or(NO_BUILD, |build| &build.id).to_owned(),
        public: template.public,
        aliases: template.names.clone(),
        names: template.names,
        created_at: template.created_at,
        updated_at: template.updated_at,
        last_spawned_at: spawns.last_at,
        spawn_count: spawns.count,
        cpu_count: limits.whole_cpus(),
        memory_mb: limits.memory.as_mib(),
        disk_size_mb: limits.disk.map_or(0, |disk| disk.as_mib()),
        created_by: None,
        build_count: builds.len(),
        envd_version: ENVD_VERSION,
        build_status: build.map_or(ShownBuildStatus::Waiting, |build| build.status.into()),
        is_default: false,
    })
}

impl From<BuildStatus> for ShownBuildStatus {
    fn from(status: BuildStatus) -> Self {
        match status {
            BuildStatus::Requested => Self::Waiting,
            // E2B has no status for a build that was accepted and waits in the queue.
            BuildStatus::Queued | BuildStatus::Building => Self::Building,
            BuildStatus::Ready => Self::Ready,
            BuildStatus::Failed => Self::Error,
        }
    }
}

/// If the request names a team, it must be the caller's.
pub(super) fn check_team(caller: &Caller, team: Option<&str>) -> Result<(), ApiError> {
    match team {
        Some(team) if team != caller.team.0 => Err(ApiError::forbidden("the key belongs to another team")),
        _ => Ok(()),
    }
}

async fn built_in(fleet: &Fleet) -> Result<Vec<TemplateView>, ApiError> {
    let mut shown = Vec::new();
    for template in fleet.node.templates().await {
        shown.push(described(fleet, template).await?);
    }
    Ok(shown)
}

/// The common part of lists and details.
async fn described(fleet: &Fleet, template: TemplateInfo) -> Result<TemplateView, ApiError> {
    let limits = fleet.sandbox_limits();
    let made_at = Timestamp::from(made_at(fleet, &template).await);
    let spawns = fleet.store.spawns_of(&template.name).await?;
    let names: Vec<_> = std::iter::once(template.name.clone()).chain(template.aliases).collect();
    Ok(TemplateView {
        template_id: template.name,
        build_id: NO_BUILD.to_owned(),
        public: true,
        aliases: names.clone(),
        names,
        created_at: made_at,
        updated_at: made_at,
        last_spawned_at: spawns.last_at,
        spawn_count: spawns.count,
        cpu_count: limits.whole_cpus(),
        memory_mb: limits.memory.as_mib(),
        disk_size_mb: limits.disk.map_or(0, |disk| disk.as_mib()),
        created_by: None,
        build_count: 0,
        envd_version: ENVD_VERSION,
        build_status: match template.state {
            TemplateState::Ready | TemplateState::Reduced { .. } => ShownBuildStatus::Ready,
            TemplateState::Building { .. } => ShownBuildStatus::Building,
            TemplateState::NotBuilt => ShownBuildStatus::Waiting,
        },
        is_default: true,
    })
}

/// E2B's clients expect a date, even for a template that isn't built yet. It gets the date of the base that it will be
/// built on.
async fn made_at(fleet: &Fleet, template: &TemplateInfo) -> SystemTime {
    let of_base = || async { fleet.node.templates().await.iter().find_map(|template| template.made_at) };
    match template.made_at {
        Some(made_at) => made_at,
        None => of_base().await.unwrap_or_else(SystemTime::now),
    }
}

async fn find_built_in(fleet: &Fleet, asked: &str) -> Result<TemplateInfo, ApiError> {
    let wanted = without_default_tag(asked);
    let known = fleet.node.templates().await.into_iter().find(|template| template.is_called(wanted));
    known.ok_or_else(|| ApiError::not_found(format!("template '{asked}' not found")))
}

/// `name:default` is the same as `name`.
pub(super) fn without_default_tag(name: &str) -> &str {
    name.strip_suffix(":default").unwrap_or(name)
}
