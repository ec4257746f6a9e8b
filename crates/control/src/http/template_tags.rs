//! Tags are names for builds. To go back to an earlier build, assign the tag to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, Empty, JsonBody, Listing, NoContent, Param, Query, QueryParams};
use isopod_store::Tag;
use isopod_store::clock::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::App;
use crate::templates::parse_tag;

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AssignTags)]
pub(super) struct Assign {
    /// `name:tag`, or `name` and the id of a build.
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = RemoveTags)]
pub(super) struct Remove {
    name: String,
    tags: Vec<String>,
}

pub(super) enum Exists {}

impl QueryParams for Exists {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[Param::text("tag").required()];
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TemplateTag)]
pub(super) struct TagView {
    tag: String,
    #[serde(rename = "buildID")]
    build_id: String,
    created_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TagCount)]
pub(super) struct Count {
    total: usize,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TagExists)]
pub(super) struct Existence {
    exists: bool,
    normalized_tag: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AssignedTags)]
pub(super) struct Assigned {
    #[serde(rename = "buildID")]
    build_id: String,
    tags: Vec<String>,
}

/// `GET /templates/{id}/tags`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Listing<TagView>, ApiError> {
    let (template, _) = app.catalogue.find(&caller.team, &id).await?;
    let shown = |tag: Tag| TagView { tag: tag.tag, build_id: tag.build, created_at: tag.assigned_at };
    Ok(Listing(app.catalogue.store.list_tags(&template.id).await?.into_iter().map(shown).collect()))
}

/// `GET /templates/{id}/tags/count`
pub(super) async fn count(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Count>, ApiError> {
    let (template, _) = app.catalogue.find(&caller.team, &id).await?;
    Ok(Json(Count { total: app.catalogue.store.list_tags(&template.id).await?.len() }))
}

/// `GET /templates/{id}/tags/exists?tag=`
pub(super) async fn exists(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<Exists>,
) -> Result<Json<Existence>, ApiError> {
    let tag = parse_tag(query.text("tag").ok_or_else(|| ApiError::bad_request("tag is required"))?)?;
    let (template, _) = app.catalogue.find(&caller.team, &id).await?;
    let exists = app.catalogue.store.list_tags(&template.id).await?.iter().any(|found| found.tag == tag);
    Ok(Json(Existence { exists, normalized_tag: tag }))
}

/// `POST /templates/tags`: `target` is `name:tag`, or `name` and the id of a build.
pub(super) async fn assign(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<Assign>,
) -> Result<Created<Assigned>, ApiError> {
    let wanted = body.parse()?;
    let tags = checked(&wanted.tags)?;
    let (template, reference) = app.catalogue.find_own(&caller.team, &wanted.target).await?;
    let build = app.catalogue.tagged(&template, &reference).await?;
    app.catalogue.store.assign_tags(&template.id, &tags, &build.id).await?;
    Ok(Created(Assigned { build_id: build.id, tags }))
}

/// `DELETE /templates/tags`
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<Remove>,
) -> Result<NoContent, ApiError> {
    let wanted = body.parse()?;
    let tags = checked(&wanted.tags)?;
    let (template, _) = app.catalogue.find_own(&caller.team, &wanted.name).await?;
    match app.catalogue.store.remove_tags(&template.id, &tags).await? {
        0 => Err(ApiError::not_found(format!("template '{}' has none of these tags", wanted.name))),
        _ => Ok(Empty),
    }
}

fn checked(tags: &[String]) -> Result<Vec<String>, ApiError> {
    if tags.is_empty() {
        return Err(ApiError::bad_request("tags must name at least one tag"));
    }
    Ok(tags.iter().map(|tag| parse_tag(tag)).collect::<Result<_, _>>()?)
}
