//! `/api/v1/teams`: teams and their members, for admins. A token's team id refers to these teams.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Empty, JsonBody, NoContent};
use isopod_store::clock::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::names::{checked_name, checked_text};
use crate::Service;
use crate::ServiceError;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TeamName)]
pub(super) struct TeamBody {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Teams)]
pub(super) struct TeamList {
    teams: Vec<TeamView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Team)]
pub(super) struct TeamView {
    id: String,
    name: String,
    created_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
pub(super) struct EnsuredTeam {
    id: String,
    name: String,
}

pub(super) async fn list(State(service): State<Arc<Service>>) -> Result<Json<TeamList>, ApiError> {
    let teams = service.store.list_teams().await?.into_iter();
    let teams = teams.map(|team| TeamView { id: team.id.0, name: team.name, created_at: team.created_at });
    Ok(Json(TeamList { teams: teams.collect() }))
}

pub(super) async fn ensure(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    body: JsonBody<TeamBody>,
) -> Result<Json<EnsuredTeam>, ApiError> {
    let id = checked_team_id(id)?;
    let name = checked_text("name", body.parse()?.name, 128)?;
    service.store.ensure_team_named(&id, &name).await?;
    Ok(Json(EnsuredTeam { id, name }))
}

/// The id becomes the name of a directory, next to others that start with a dot.
fn checked_team_id(id: String) -> Result<String, ApiError> {
    let id = checked_name("id", id)?;
    if id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return Ok(id);
    }
    Err(ApiError::bad_request("id must start with a letter or a digit"))
}

pub(super) async fn add_member(
    State(service): State<Arc<Service>>,
    Path((id, member)): Path<(String, String)>,
) -> Result<NoContent, ApiError> {
    let member = checked_name("member", member)?;
    match service.store.add_member(&id, &member).await? {
        true => Ok(Empty),
        false => Err(ServiceError::not_found("team", &id).into()),
    }
}

pub(super) async fn remove_member(
    State(service): State<Arc<Service>>,
    Path((id, member)): Path<(String, String)>,
) -> Result<NoContent, ApiError> {
    match service.store.remove_member(&id, &member).await? {
        true => Ok(Empty),
        false => Err(ServiceError::not_found("member", &member).into()),
    }
}
