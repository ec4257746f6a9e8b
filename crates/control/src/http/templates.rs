//! Templates as they are shown: the team's own, and those that come with the server.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, State};
use isopod_store::clock::Timestamp;
use isopod_store::{Build, BuildStatus, Template};
use isopod_wire::ENVD_VERSION;
use isopod_wire::node::{TemplateInfo, TemplateState};
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use crate::lifecycle::Fleet;
use crate::templates::FindError;

const NO_BUILD: &str = "00000000-0000-0000-0000-000000000000";

/// `GET /templates`: the team's own first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    let query = query.known(&["teamID", "limit", "nextToken"]);
    check_team(&caller, query.text("teamID"))?;
    let mut shown = Vec::new();
    for template in app.catalogue.store.list_templates(&caller.team).await? {
        let builds = app.catalogue.store.list_builds(&template.id).await?;
        shown.push(listed(&app, &template, &builds).await?);
    }
    shown.extend(built_in(&app.fleet).await?);
    Ok(Json(shown.into()))
}

/// `GET /default-templates`: those that come with the server.
pub(super) async fn list_default(State(app): State<Arc<App>>, _: Caller) -> Result<Json<Value>, ApiError> {
    Ok(Json(built_in(&app.fleet).await?.into()))
}

/// `GET /templates/aliases/{alias}`
pub(super) async fn alias(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(alias): Path<String>,
) -> Result<Json<Value>, ApiError> {
    match app.catalogue.find(&caller.team, &alias).await {
        Ok((template, _)) => Ok(Json(json!({ "templateID": template.id, "public": template.public }))),
        Err(FindError::NotFound(_)) => {
            let template = find_built_in(&app.fleet, &alias).await?;
            Ok(Json(json!({ "templateID": template.name, "public": true })))
        }
        Err(error) => Err(error.into()),
    }
}

/// `GET /templates/{id}`, with all builds.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let template = match app.catalogue.find(&caller.team, &id).await {
        Ok((template, _)) => template,
        Err(FindError::NotFound(_)) => {
            let mut described = described(&app.fleet, &find_built_in(&app.fleet, &id).await?).await?;
            described["builds"] = json!([]);
            return Ok(Json(described));
        }
        Err(error) => return Err(error.into()),
    };
    let builds = app.catalogue.store.list_builds(&template.id).await?;
    let tags = app.catalogue.store.list_tags(&template.id).await?;
    let mut shown = listed(&app, &template, &builds).await?;
    let build_shown = |build: &Build| {
        let named = tags.iter().filter(|tag| tag.build == build.id).map(|tag| &tag.tag);
        json!({
            "buildID": build.id, "status": status_text(build.status), "cpuCount": build.limits.whole_cpus(),
            "memoryMB": build.limits.memory.as_mib(), "createdAt": build.created_at,
            "updatedAt": build.finished_at.unwrap_or(build.created_at), "finishedAt": build.finished_at,
            "diskSizeMB": build.limits.disk.map_or(0, |disk| disk.as_mib()), "envdVersion": ENVD_VERSION,
            "sizeBytes": build.size, "tags": named.collect::<Vec<_>>(),
            "reason": build.reason.as_ref().map(|reason| &reason.message),
        })
    };
    shown["builds"] = builds.iter().map(build_shown).collect();
    Ok(Json(shown))
}

/// One line of a list. The figures are those of the build that a plain create would use, else of the latest.
async fn listed(app: &App, template: &Template, builds: &[Build]) -> Result<Value, ApiError> {
    let store = &app.catalogue.store;
    let tagged = store.tagged_build(&template.id, crate::templates::DEFAULT_TAG).await?;
    let build = tagged.as_ref().or(builds.first());
    let limits = build.map_or(app.fleet.sandbox_limits(), |build| build.limits);
    let spawns = store.spawns_of(&template.id).await?;
    Ok(json!({
        "templateID": template.id, "buildID": build.map_or(NO_BUILD, |build| &build.id), "public": template.public,
        "aliases": template.names, "names": template.names, "createdAt": template.created_at,
        "updatedAt": template.updated_at, "lastSpawnedAt": spawns.last_at, "spawnCount": spawns.count,
        "cpuCount": limits.whole_cpus(), "memoryMB": limits.memory.as_mib(),
        "diskSizeMB": limits.disk.map_or(0, |disk| disk.as_mib()), "createdBy": null, "buildCount": builds.len(),
        "envdVersion": ENVD_VERSION, "buildStatus": build.map_or("waiting", |build| status_text(build.status)),
        "isDefault": false,
    }))
}

/// In E2B's words.
pub(super) fn status_text(status: BuildStatus) -> &'static str {
    match status {
        BuildStatus::Requested => "waiting",
        // E2B has no word for a build that was accepted and waits for its turn.
        BuildStatus::Queued | BuildStatus::Building => "building",
        BuildStatus::Ready => "ready",
        BuildStatus::Failed => "error",
    }
}

/// A team that is named must be the caller's.
pub(super) fn check_team(caller: &Caller, team: Option<&str>) -> Result<(), ApiError> {
    match team {
        Some(team) if team != caller.team.0 => Err(ApiError::forbidden("the key is not of that team")),
        _ => Ok(()),
    }
}

async fn built_in(fleet: &Fleet) -> Result<Vec<Value>, ApiError> {
    let limits = fleet.sandbox_limits();
    let mut shown = Vec::new();
    for template in fleet.node.templates().await {
        let mut described = described(fleet, &template).await?;
        let more = json!({
            "buildID": NO_BUILD, "cpuCount": limits.whole_cpus(), "memoryMB": limits.memory.as_mib(),
            "diskSizeMB": limits.disk.map_or(0, |disk| disk.as_mib()), "createdBy": null,
            "buildCount": 0, "envdVersion": ENVD_VERSION, "buildStatus": build_status(&template.state),
            "isDefault": true,
        });
        if let (Some(described), Value::Object(more)) = (described.as_object_mut(), more) {
            described.extend(more);
        }
        shown.push(described);
    }
    Ok(shown)
}

/// What lists and details have in common.
async fn described(fleet: &Fleet, template: &TemplateInfo) -> Result<Value, ApiError> {
    let made_at = Timestamp::from(made_at(fleet, template).await);
    let spawns = fleet.store.spawns_of(&template.name).await?;
    let names = names(template);
    Ok(json!({
        "templateID": template.name, "public": true, "aliases": names, "names": names, "createdAt": made_at,
        "updatedAt": made_at, "lastSpawnedAt": spawns.last_at, "spawnCount": spawns.count,
    }))
}

/// E2B's clients expect a date, also of a template that isn't built yet. It gets that of the base it will be built on.
async fn made_at(fleet: &Fleet, template: &TemplateInfo) -> SystemTime {
    let of_base = || async { fleet.node.templates().await.iter().find_map(|template| template.made_at) };
    match template.made_at {
        Some(made_at) => made_at,
        None => of_base().await.unwrap_or_else(SystemTime::now),
    }
}

/// Its name and what else it is called.
fn names(template: &TemplateInfo) -> Vec<&String> {
    std::iter::once(&template.name).chain(&template.aliases).collect()
}

/// In E2B's words.
fn build_status(state: &TemplateState) -> &'static str {
    match state {
        TemplateState::Ready | TemplateState::Reduced { .. } => "ready",
        TemplateState::Building { .. } => "building",
        TemplateState::NotBuilt => "waiting",
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
