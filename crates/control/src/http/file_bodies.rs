//! Bodies that are files. They are received and sent piece by piece, and a slow client holds no thread.

use std::fs::File;
use std::sync::Arc;

use axum::body::Body;
use futures::StreamExt as _;
use http::{HeaderMap, header};
use isopod_api::{ApiError, body_error};

use isopod_files::{FileError, FileSink, FileStore, Offloaded, pieces_of};

/// Writes the body to the sink that `begin` creates, and returns the sink's result. A body that breaks off leaves
/// nothing.
pub async fn receive<S: FileSink<Error = FileError>>(
    body: Body,
    begin: impl FnOnce() -> Result<S, FileError> + Send + 'static,
) -> Result<S::Done, ApiError> {
    let mut sink = Offloaded::begin(begin).await?;
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| body_error(&error, FileError::Incomplete))?;
        sink = sink.write(piece).await?;
    }
    Ok(sink.finish().await?)
}

/// Returns the file as a body. It is read as fast as the client receives it.
pub fn send(file: File) -> Body {
    Body::from_stream(pieces_of(file))
}

/// Returns the size of the body that the client announced.
pub fn expected_size(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns the files of the workspace, if there is one.
pub fn file_store(files: Option<&Arc<FileStore>>) -> Result<&Arc<FileStore>, ApiError> {
    files.ok_or_else(|| ApiError::unsupported("a workspace (see `serve --storage`)"))
}
