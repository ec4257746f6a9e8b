//! Streams files of the host as request and response bodies, on threads that may block.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::header;
use isopod_api::{ApiError, Download, body_error};
use isopod_control::http::is_in_the_way;
use isopod_files::{Offloaded, exactly};

use crate::sessions::{HostTree, RelPath, SessionError, WorkspaceError, content_type};

/// A file as an answer. Browsers are to save it, never to show it: its contents are a stranger's.
pub(super) async fn send(tree: Arc<HostTree>, path: RelPath) -> Result<Download, ApiError> {
    let kind = content_type(path.as_str());
    let opening = tokio::task::spawn_blocking(move || tree.read(&path).map(|found| (found, path)));
    let ((file, facts), path) = match opening.await.map_err(|_| SessionError::Aborted)? {
        Ok(opened) => opened,
        Err(_) => return Err(ApiError::not_found("the file is gone")),
    };
    let name = path.as_str().rsplit('/').next().unwrap_or_default();
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let response = Response::builder()
        .header(header::CONTENT_TYPE, kind)
        .header(header::CONTENT_LENGTH, facts.size)
        .header(header::CONTENT_DISPOSITION, format!("attachment; filename*=utf-8''{name}"))
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .body(Body::from_stream(exactly(file, facts.size)));
    Ok(Download(response.expect("the type is a constant and the name is encoded")))
}

/// Writes a stream to a file of at most `max_bytes` and returns its size. An interrupted stream leaves no file.
pub(super) async fn receive<E: std::error::Error + 'static>(
    tree: Arc<HostTree>,
    path: RelPath,
    pieces: impl Stream<Item = Result<Bytes, E>>,
    max_bytes: u64,
) -> Result<u64, ApiError> {
    let shown = path.as_str().to_owned();
    let refused = |error| write_refused(&shown, error);
    let mut file = Offloaded::begin(move || tree.begin(&path, true)).await.map_err(refused)?;
    let mut taken: u64 = 0;
    let mut pieces = std::pin::pin!(pieces);
    while let Some(piece) = pieces.next().await {
        let broken = || ApiError::bad_request("the request body could not be read");
        let piece = piece.map_err(|error| body_error(&error, broken()))?;
        taken += piece.len() as u64;
        if taken > max_bytes {
            return Err(ApiError::too_large(usize::try_from(max_bytes).unwrap_or(usize::MAX)));
        }
        file = file.write(piece).await.map_err(refused)?;
    }
    let (facts, _) = file.finish().await.map_err(refused)?;
    Ok(facts.size)
}

fn write_refused(shown: &str, error: io::Error) -> ApiError {
    if is_in_the_way(&error) {
        return ApiError::conflict(format!("{shown:?} cannot be written: something else is in the way"));
    }
    SessionError::from(WorkspaceError::Host { what: "write", path: shown.into(), source: error }).into()
}
