//! `/api/v1/teams`: teams and the people in them, for admins. What identity a token's team id stands for begins here.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::audit::only_admins;
use super::names::{checked_name, checked_text};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::JsonBody;
use crate::http::error::ApiError;
use crate::service::ServiceError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TeamBody {
    name: String,
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    only_admins(&caller)?;
    let teams = app.service.store.list_teams().await?;
    let shown = teams.iter().map(|team| json!({ "id": team.id, "name": team.name, "created_at": team.created_at }));
    Ok(Json(json!({ "teams": shown.collect::<Vec<_>>() })))
}

pub(super) async fn ensure(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    only_admins(&caller)?;
    let id = checked_name("id", id)?;
    let name = checked_text("name", body.parse::<TeamBody>()?.name, 128)?;
    app.service.store.ensure_team_named(&id, &name).await?;
    Ok(Json(json!({ "id": id, "name": name })))
}

pub(super) async fn add_member(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, member)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    only_admins(&caller)?;
    let member = checked_name("member", member)?;
    match app.service.store.add_member(&id, &member).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ServiceError::not_found("team", &id).into()),
    }
}

pub(super) async fn remove_member(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, member)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    only_admins(&caller)?;
    match app.service.store.remove_member(&id, &member).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ServiceError::not_found("member", &member).into()),
    }
}
