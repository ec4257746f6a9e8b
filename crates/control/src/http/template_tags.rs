//! Tags: names for builds. Giving one to an earlier build goes back to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use http::StatusCode;
use isopod_store::Tag;
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;
use crate::query::pairs;
use crate::templates::parse_tag;

#[derive(Debug, Deserialize)]
struct Assign {
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Remove {
    name: String,
    tags: Vec<String>,
}

/// `GET /templates/{id}/tags`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (template, _) = app.catalogue.find(&caller.team, &id).await?;
    let shown = |tag: &Tag| json!({ "tag": tag.tag, "buildID": tag.build, "createdAt": tag.assigned_at });
    Ok(Json(app.catalogue.store.list_tags(&template.id).await?.iter().map(shown).collect()))
}

/// `GET /templates/{id}/tags/count`
pub(super) async fn count(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (template, _) = app.catalogue.find(&caller.team, &id).await?;
    Ok(Json(json!({ "total": app.catalogue.store.list_tags(&template.id).await?.len() })))
}

/// `GET /templates/{id}/tags/exists?tag=`
pub(super) async fn exists(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let wanted = pairs(query.as_deref().unwrap_or_default()).into_iter().find(|(name, _)| name == "tag");
    let (_, wanted) = wanted.ok_or_else(|| ApiError::bad_request("tag must say which"))?;
    let tag = parse_tag(&wanted)?;
    let (template, _) = app.catalogue.find(&caller.team, &id).await?;
    let exists = app.catalogue.store.list_tags(&template.id).await?.iter().any(|found| found.tag == tag);
    Ok(Json(json!({ "exists": exists, "normalizedTag": tag })))
}

/// `POST /templates/tags`: `target` is `name:tag`, or `name` and a build's id.
pub(super) async fn assign(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let wanted: Assign = body.parse_lenient()?;
    let tags = checked(&wanted.tags)?;
    let (template, reference) = app.catalogue.find_own(&caller.team, &wanted.target).await?;
    let build = app.catalogue.tagged(&template, &reference).await?;
    app.catalogue.store.assign_tags(&template.id, &tags, &build.id).await?;
    Ok((StatusCode::CREATED, Json(json!({ "buildID": build.id, "tags": tags }))))
}

/// `DELETE /templates/tags`
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let wanted: Remove = body.parse_lenient()?;
    let tags = checked(&wanted.tags)?;
    let (template, _) = app.catalogue.find_own(&caller.team, &wanted.name).await?;
    match app.catalogue.store.remove_tags(&template.id, &tags).await? {
        0 => Err(ApiError::not_found(format!("template '{}' has none of these tags", wanted.name))),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

fn checked(tags: &[String]) -> Result<Vec<String>, ApiError> {
    if tags.is_empty() {
        return Err(ApiError::bad_request("tags must name at least one tag"));
    }
    Ok(tags.iter().map(|tag| parse_tag(tag)).collect::<Result<_, _>>()?)
}
