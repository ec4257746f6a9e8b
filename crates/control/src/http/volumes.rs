//! `/volumes`: files that outlive sandboxes and can be mounted in them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, Empty, JsonBody, Listing, NoContent};
use isopod_store::Volume;
use isopod_store::secrets::{new_token, new_uuid};
use isopod_wire::node::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::App;
use super::file_bodies::file_store;

const MAX_VOLUMES: usize = 1000;

#[derive(Deserialize, ToSchema)]
pub(super) struct NewVolume {
    #[schema(pattern = "^[A-Za-z0-9._-]{1,128}$")]
    name: String,
}

/// A volume in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = Volume)]
pub(super) struct VolumeView {
    #[serde(rename = "volumeID")]
    id: String,
    name: String,
}

/// A volume with the token for its content. It has no `domain`, because with one, clients would use
/// `https://api.{domain}` whatever E2B_VOLUME_API_URL says.
#[derive(Serialize, ToSchema)]
pub(super) struct VolumeAndToken {
    #[serde(rename = "volumeID")]
    id: String,
    name: String,
    #[schema(value_type = String)]
    token: Secret,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<NewVolume>,
) -> Result<Created<VolumeAndToken>, ApiError> {
    let NewVolume { name } = body.parse()?;
    check_name(&name)?;
    let files = file_store(app.files.as_ref())?;
    if app.fleet.store.list_volumes(&caller.team).await?.len() >= MAX_VOLUMES {
        return Err(ApiError::bad_request(format!("a team can have at most {MAX_VOLUMES} volumes")));
    }
    let volume = Volume { id: new_uuid(), team: caller.team, name, token: new_token() };
    if !app.fleet.store.insert_volume(&volume).await? {
        return Err(ApiError::conflict(format!("volume \"{}\" already exists", volume.name)));
    }
    // Creates the directory now, so that the client gets an error at once if the workspace is not writable.
    files.volume(&volume.id).await?;
    Ok(Created(with_token(volume)))
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Listing<VolumeView>, ApiError> {
    let volumes = app.fleet.store.list_volumes(&caller.team).await?;
    Ok(Listing(volumes.into_iter().map(|volume| VolumeView { id: volume.id, name: volume.name }).collect()))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<VolumeAndToken>, ApiError> {
    let volume = app.fleet.store.find_volume(&caller.team, &id).await?.ok_or_else(|| no_such_volume(&id))?;
    Ok(Json(with_token(volume)))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    let files = file_store(app.files.as_ref())?;
    if !app.fleet.store.begin_removing_volume(&caller.team, &id).await? {
        return Err(no_such_volume(&id));
    }
    // If this fails, the retention task tries again.
    files.remove_volume(&id).await?;
    app.fleet.store.forget_volume(&id).await?;
    Ok(Empty)
}

/// Names are simple, because mounts refer to them.
fn check_name(name: &str) -> Result<(), ApiError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=128).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(ApiError::bad_request("a volume's name must have 1 to 128 characters of a-z, A-Z, 0-9, '-', '_' and '.'"))
}

fn with_token(Volume { id, name, token, .. }: Volume) -> VolumeAndToken {
    VolumeAndToken { id, name, token }
}

pub(super) fn no_such_volume(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::not_found(format!("volume \"{shown}\" doesn't exist or you don't have access to it"))
}
