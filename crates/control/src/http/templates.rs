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

const NO_BUILD: &str = "00000000-0000-0000-0000-000000000000";

pub(super) async fn list(State(app): State<Arc<App>>, _: Caller, query: Query) -> Result<Json<Value>, ApiError> {
    query.only(&["teamID", "limit", "nextToken"])?;
    let limits = app.fleet.sandbox_limits();
    let mut templates = Vec::new();
    for template in app.fleet.node.templates().await {
        let mut described = described(&app, &template).await?;
        let more = json!({
            "buildID": NO_BUILD, "cpuCount": limits.whole_cpus(), "memoryMB": limits.memory.as_mib(),
            "diskSizeMB": limits.disk.map_or(0, |disk| disk.as_mib()), "createdBy": null,
            "buildCount": 0, "envdVersion": ENVD_VERSION, "buildStatus": build_status(&template.state),
            "isDefault": true,
        });
        if let (Some(described), Value::Object(more)) = (described.as_object_mut(), more) {
            described.extend(more);
        }
        templates.push(described);
    }
    Ok(Json(templates.into()))
}

/// What lists and details have in common. A template that the node has no date for is not made yet.
async fn described(app: &App, template: &TemplateInfo) -> Result<Value, ApiError> {
    let made_at = template.made_at.map_or(Timestamp(0), Timestamp::from);
    let spawns = app.fleet.store.spawns_of(&template.name).await?;
    let names = names(template);
    Ok(json!({
        "templateID": template.name, "public": true, "aliases": names, "names": names, "createdAt": made_at,
        "updatedAt": made_at, "lastSpawnedAt": spawns.last_at, "spawnCount": spawns.count,
    }))
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
    let mut described = described(&app, &template).await?;
    described["builds"] = json!([]);
    Ok(Json(described))
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
