//! Templates, read only: what the node has.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_wire::ENVD_VERSION;
use isopod_wire::node::{TemplateInfo, TemplateState};
use serde_json::{Value, json};

use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use crate::app::App;
use crate::clock::Timestamp;

/// Templates of a node have no date of their own yet.
const UNDATED: Timestamp = Timestamp(0);
const NO_BUILD: &str = "00000000-0000-0000-0000-000000000000";

pub(super) async fn list(State(app): State<Arc<App>>, _: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    query.only(&["teamID", "limit", "nextToken"])?;
    let limits = app.fleet.sandbox_limits();
    let templates = app.fleet.node.templates().await;
    let template = |template: &TemplateInfo| {
        let names = names(template);
        json!({
            "templateID": template.name, "buildID": NO_BUILD, "public": true, "aliases": names, "names": names,
            "cpuCount": limits.whole_cpus(), "memoryMB": limits.memory.as_mib(),
            "diskSizeMB": limits.disk.map_or(0, |disk| disk.as_mib()),
            "createdAt": UNDATED, "updatedAt": UNDATED, "createdBy": null, "lastSpawnedAt": null,
            "spawnCount": 0, "buildCount": 0, "envdVersion": ENVD_VERSION, "buildStatus": build_status(&template.state), "isDefault": true,
        })
    };
    Ok(Json(templates.iter().map(template).collect()))
}

pub(super) async fn alias(
    State(app): State<Arc<App>>,
    _: Caller,
    Path(alias): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let template = find(&app, &alias).await?;
    Ok(Json(json!({ "templateID": template.name, "public": true })))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    _: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let template = find(&app, &id).await?;
    let names = names(&template);
    Ok(Json(json!({
        "templateID": template.name, "public": true, "aliases": names, "names": names, "createdAt": UNDATED,
        "updatedAt": UNDATED, "lastSpawnedAt": null, "spawnCount": 0, "builds": [],
    })))
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

async fn find(app: &App, asked: &str) -> Result<TemplateInfo, ApiError> {
    let wanted = without_default_tag(asked);
    let known = app.fleet.node.templates().await.into_iter().find(|template| template.is_called(wanted));
    known.ok_or_else(|| ApiError::not_found(format!("template '{asked}' not found")))
}

/// `name:default` is the same as `name`.
pub(super) fn without_default_tag(name: &str) -> &str {
    name.strip_suffix(":default").unwrap_or(name)
}
