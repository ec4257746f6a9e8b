//! `/runtime/library`: files that a team keeps for its runs, those of each client and public ones.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Multipart, Path, State};
use axum::response::Response;
use http::StatusCode;
use isopod_control::http::{ApiError, Caller};
use serde_json::{Value, json};

use super::client_id::ClientId;
use super::{parse_path, stream};
use crate::Agents;

pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
) -> Result<Json<Value>, ApiError> {
    let files = app.sessions.list_library(&caller.team, &client).await?;
    Ok(Json(json!({ "client_id": client, "files": files })))
}

/// Each part of the form that has a file name becomes a file.
pub(super) async fn upload(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    form: Result<Multipart, axum::extract::multipart::MultipartRejection>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let mut form = form.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let unreadable = |error: axum::extract::multipart::MultipartError| ApiError::bad_request(error.body_text());
    let library = app.sessions.ensure_library(&caller.team, &client).await?;
    let max_bytes = app.sessions.settings().caps.file_bytes;
    let mut written = Vec::new();
    while let Some(field) = form.next_field().await.map_err(unreadable)? {
        let Some(name) = field.file_name().map(str::to_owned) else { continue };
        let path = parse_path(&name)?;
        let size = stream::receive(Arc::clone(&library), path, field, max_bytes).await?;
        written.push(json!({ "filename": name, "size_bytes": size }));
    }
    if written.is_empty() {
        return Err(ApiError::bad_request("the form has no file"));
    }
    Ok((StatusCode::CREATED, Json(json!({ "success": true, "client_id": client, "files": written }))))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path(path): Path<String>,
) -> Result<Response, ApiError> {
    let path = parse_path(&path)?;
    let tree = app.sessions.find_in_library(&caller.team, &client, &path).await?;
    stream::send(tree, path).await
}

pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path(path): Path<String>,
) -> Result<StatusCode, ApiError> {
    let path = parse_path(&path)?;
    match app.sessions.remove_from_library(&caller.team, &client, &path).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found(format!("the library has no file {:?}", path.as_str()))),
    }
}
