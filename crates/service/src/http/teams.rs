//! `/api/v1/teams`: teams and their members, for admins. A token's team id refers to these teams.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use isopod_control::http::{ApiError, JsonBody};
use serde::Deserialize;
use serde_json::{Value, json};

use super::names::{checked_name, checked_text};
use crate::Service;
use crate::ServiceError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TeamBody {
    name: String,
}

pub(super) async fn list(State(service): State<Arc<Service>>) -> Result<Json<Value>, ApiError> {
    let teams = service.store.list_teams().await?;
    let shown = teams.iter().map(|team| json!({ "id": team.id, "name": team.name, "created_at": team.created_at }));
    Ok(Json(json!({ "teams": shown.collect::<Vec<_>>() })))
}

pub(super) async fn ensure(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let id = checked_team_id(id)?;
    let name = checked_text("name", body.parse::<TeamBody>()?.name, 128)?;
    service.store.ensure_team_named(&id, &name).await?;
    Ok(Json(json!({ "id": id, "name": name })))
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
) -> Result<StatusCode, ApiError> {
    let member = checked_name("member", member)?;
    match service.store.add_member(&id, &member).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ServiceError::not_found("team", &id).into()),
    }
}

pub(super) async fn remove_member(
    State(service): State<Arc<Service>>,
    Path((id, member)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    match service.store.remove_member(&id, &member).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ServiceError::not_found("member", &member).into()),
    }
}
