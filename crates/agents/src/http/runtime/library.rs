//! `/runtime/library`: files that a team keeps for its runs, those of each client and public ones.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Multipart, Path, State};
use isopod_api::{ApiError, Caller, Created, Download, Empty, NoContent};
use serde::Serialize;
use utoipa::ToSchema;

use super::client_id::ClientId;
use super::{parse_path, stream};
use crate::Agents;
use crate::sessions::LibraryFile;

#[derive(Serialize, ToSchema)]
#[schema(as = LibraryFiles)]
pub(super) struct Library {
    client_id: String,
    files: Vec<LibraryFile>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UploadedFiles)]
pub(super) struct Uploaded {
    success: bool,
    client_id: String,
    files: Vec<UploadedFile>,
}

#[derive(Serialize, ToSchema)]
struct UploadedFile {
    filename: String,
    size_bytes: u64,
}

pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
) -> Result<Json<Library>, ApiError> {
    let files = app.sessions.list_library(&caller.team, &client).await?;
    Ok(Json(Library { client_id: client, files }))
}

/// Each part of the form that has a file name becomes a file.
pub(super) async fn upload(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    form: Result<Multipart, axum::extract::multipart::MultipartRejection>,
) -> Result<Created<Uploaded>, ApiError> {
    let mut form = form.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let unreadable = |error: axum::extract::multipart::MultipartError| ApiError::bad_request(error.body_text());
    let library = app.sessions.ensure_library(&caller.team, &client).await?;
    let max_bytes = app.sessions.settings().caps.file_bytes;
    let mut written = Vec::new();
    while let Some(field) = form.next_field().await.map_err(unreadable)? {
        let Some(name) = field.file_name().map(str::to_owned) else { continue };
        let path = parse_path(&name)?;
        let size = stream::receive(Arc::clone(&library), path.clone(), field, max_bytes).await?;
        // A promoted file of that name would hide the new one.
        app.sessions.unpromote(&caller.team, &client, &path).await?;
        written.push(UploadedFile { filename: name, size_bytes: size });
    }
    if written.is_empty() {
        return Err(ApiError::bad_request("the form has no file"));
    }
    Ok(Created(Uploaded { success: true, client_id: client, files: written }))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path(path): Path<String>,
) -> Result<Download, ApiError> {
    let path = parse_path(&path)?;
    let tree = app.sessions.find_in_library(&caller.team, &client, &path).await?;
    stream::send(tree, path).await
}

pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path(path): Path<String>,
) -> Result<NoContent, ApiError> {
    let path = parse_path(&path)?;
    match app.sessions.remove_from_library(&caller.team, &client, &path).await? {
        true => Ok(Empty),
        false => Err(ApiError::not_found(format!("the library has no file {:?}", path.as_str()))),
    }
}
