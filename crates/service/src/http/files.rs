//! `PUT` and `GET /api/v1/sandboxes/{id}/files?path=`: streams a file. Its size is limited by the sandbox's disk.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::IntoResponse as _;
use futures::TryStreamExt as _;
use http::{HeaderValue, header};
use isopod_api::{ApiError, Caller, Download, Param, Query, QueryParams};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Access;
use crate::Service;

pub(super) enum Place {}

impl QueryParams for Place {
    const PARAMS: &'static [Param] =
        &[Param::text_of("path", 1, MAX_PATH).required(), Param::text("user").about("whose it is to be")];
}

/// What was written.
#[derive(Serialize, ToSchema)]
pub(super) struct WrittenFile {
    path: String,
    size: i64,
}

const MAX_PATH: usize = 4096;

pub(super) async fn write(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<Place>,
    request: Request,
) -> Result<Json<WrittenFile>, ApiError> {
    let (path, user) = place(&query)?;
    let contents = request.into_body().into_data_stream().map_err(io::Error::other);
    let size = service.write_file(&Access::from(&caller), &id, &path, user.as_deref(), contents).await?;
    Ok(Json(WrittenFile { path, size }))
}

pub(super) async fn read(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<Place>,
) -> Result<Download, ApiError> {
    let (path, user) = place(&query)?;
    let file = service.read_file(&Access::from(&caller), &id, &path, user.as_deref()).await?;
    let size = file.size;
    let mut response = Body::from_stream(file.body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // Files from a sandbox must never be shown as a page of this origin.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if let Some(size) = size {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Ok(Download(response))
}

fn place(query: &Query<Place>) -> Result<(String, Option<String>), ApiError> {
    let path = query.text("path").ok_or_else(|| ApiError::bad_request("path is missing"))?;
    if path.len() > MAX_PATH || path.contains('\0') {
        return Err(ApiError::bad_request("path must have up to 4096 bytes and no zero byte"));
    }
    Ok((path.to_owned(), query.text("user").map(str::to_owned)))
}
