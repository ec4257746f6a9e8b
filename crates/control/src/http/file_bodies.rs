//! Bodies that are files: taken piece by piece as they come, given piece by piece as they are read. Whoever is slow at the
//! other end holds no thread of ours meanwhile.

use std::fs::File;
use std::sync::Arc;

use axum::body::Body;
use futures::StreamExt as _;
use http::{HeaderMap, header};
use isopod_api::{ApiError, body_error};

use crate::files::{FileError, FileSink, FileStore, Offloaded, pieces_of};

/// Lets `begin` make something that takes the body, and says what it made of it. A body that breaks off leaves nothing.
pub async fn receive<S: FileSink<Error = FileError>>(
    body: Body,
    begin: impl FnOnce() -> Result<S, FileError> + Send + 'static,
) -> Result<S::Done, ApiError> {
    let mut sink = Offloaded::begin(begin).await?;
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| body_error(&error, FileError::Cut))?;
        sink = sink.write(piece).await?;
    }
    Ok(sink.finish().await?)
}

/// The file as a body. It is read as fast as the client takes it.
pub fn send(file: File) -> Body {
    Body::from_stream(pieces_of(file))
}

/// How large the client says that the body is.
pub fn expected_size(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The files of the workspace, where there is one.
pub fn file_store(files: Option<&Arc<FileStore>>) -> Result<&Arc<FileStore>, ApiError> {
    files.ok_or_else(|| ApiError::unsupported("a workspace (see `serve --storage`)"))
}
