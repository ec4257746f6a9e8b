//! `/volumecontent/{id}/{path,dir,file}`: what is in a volume, for those who have its token.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, RawPathParams, State};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use isopod_store::secrets::same;
use serde::Deserialize;

use super::app::App;
use super::body::{JsonBody, Query};
use super::error::ApiError;
use super::file_bodies::file_store;
use super::file_bodies::{expected_size, receive, send};
use crate::files::{EntryStat, FileError, InnerPath, Ownership, VolumeFiles, blocking};

/// A volume whose token the caller has shown.
pub(super) struct OpenVolume {
    files: Arc<VolumeFiles>,
}

impl FromRequestParts<Arc<App>> for OpenVolume {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let refused = || ApiError::unauthorized("a volume's contents are opened by its token: Authorization: Bearer");
        let given = bearer(&parts.headers).ok_or_else(refused)?.to_owned();
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_| refused())?;
        let id = params.iter().find(|(name, _)| *name == "id").map(|(_, id)| id.to_owned()).ok_or_else(refused)?;
        let volume = app.fleet.store.find_any_volume(&id).await?.ok_or_else(refused)?;
        if !same(given.as_bytes(), volume.token.0.as_bytes()) {
            return Err(refused());
        }
        Ok(Self { files: Arc::new(file_store(app.files.as_ref())?.volume(&volume.id).await?) })
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

pub(super) async fn stat(volume: OpenVolume, query: Query) -> Result<Json<EntryStat>, ApiError> {
    let path = path_of(&query.known(&["path"]))?;
    Ok(Json(blocking(move || volume.files.stat(&path)).await?))
}

/// What a change may say.
#[derive(Deserialize)]
struct ChangeBody {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

pub(super) async fn change(volume: OpenVolume, query: Query, body: JsonBody) -> Result<Json<EntryStat>, ApiError> {
    let path = path_of(&query.known(&["path"]))?;
    let ChangeBody { uid, gid, mode } = body.parse_lenient()?;
    let ownership = Ownership { uid, gid, mode: mode.map(checked_mode).transpose()? };
    Ok(Json(blocking(move || volume.files.change(&path, ownership)).await?))
}

pub(super) async fn remove(volume: OpenVolume, query: Query) -> Result<StatusCode, ApiError> {
    let path = path_of(&query.known(&["path"]))?;
    blocking(move || volume.files.remove(&path)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(volume: OpenVolume, query: Query) -> Result<Json<Vec<EntryStat>>, ApiError> {
    let query = query.known(&["path", "depth"]);
    let path = path_of(&query)?;
    let depth = query.number("depth", 1, 100)?.unwrap_or(1);
    let depth = usize::try_from(depth).unwrap_or(1);
    Ok(Json(blocking(move || volume.files.list(&path, depth)).await?))
}

pub(super) async fn make_dir(volume: OpenVolume, query: Query) -> Result<(StatusCode, Json<EntryStat>), ApiError> {
    let (path, ownership, force) = entry_of(query)?;
    let made = blocking(move || volume.files.make_dir(&path, ownership, force)).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

pub(super) async fn read(volume: OpenVolume, query: Query) -> Result<Response, ApiError> {
    let path = path_of(&query.known(&["path"]))?;
    let (file, size) = blocking(move || volume.files.open(&path)).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_LENGTH, HeaderValue::from(size)),
    ];
    Ok((headers, send(file)).into_response())
}

pub(super) async fn write(
    State(app): State<Arc<App>>,
    volume: OpenVolume,
    Path(_id): Path<String>,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<EntryStat>), ApiError> {
    let (path, ownership, force) = entry_of(query)?;
    let limit = file_store(app.files.as_ref())?.volume_file_limit();
    if expected_size(&headers).is_some_and(|size| size > limit) {
        return Err(FileError::TooLarge(limit).into());
    }
    let written = receive(body, move || volume.files.begin_put(path, ownership, force, limit)).await?;
    Ok((StatusCode::CREATED, Json(written)))
}

fn entry_of(query: Query) -> Result<(InnerPath, Ownership, bool), ApiError> {
    let query = query.known(&["path", "uid", "gid", "mode", "force"]);
    let id =
        |name| Ok::<_, ApiError>(query.number(name, 0, i64::from(u32::MAX) - 1)?.and_then(|id| u32::try_from(id).ok()));
    let mode = query.number("mode", 0, 0o7777)?.and_then(|mode| u32::try_from(mode).ok());
    let force = match query.text("force") {
        None => false,
        Some("true" | "True" | "1") => true,
        Some("false" | "False" | "0") => false,
        Some(_) => return Err(ApiError::bad_request("force must be true or false")),
    };
    Ok((
        path_of(&query)?,
        Ownership { uid: id("uid")?, gid: id("gid")?, mode: mode.map(checked_mode).transpose()? },
        force,
    ))
}

fn path_of(query: &Query) -> Result<InnerPath, ApiError> {
    let path = query.text("path").ok_or_else(|| ApiError::bad_request("path is required"))?;
    Ok(InnerPath::parse(path).map_err(FileError::from)?)
}

/// Permissions alone: what a volume holds never gives anybody another identity.
fn checked_mode(mode: u32) -> Result<u32, ApiError> {
    if mode <= 0o777 {
        Ok(mode)
    } else {
        Err(ApiError::bad_request("mode has the nine bits of permissions, at most 511"))
    }
}
