//! Bodies that are files: taken piece by piece as they come, given piece by piece as they are read.

use std::fs::File;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use super::error::ApiError;
use crate::files::{FileError, FileSink, blocking, pieces_of};

/// Pieces that wait for the disk.
const WAITING: usize = 8;

/// Lets `begin` make something that takes the body, and says what it made of it. A body that breaks off leaves nothing.
pub(super) async fn receive<S: FileSink>(
    mut body: Body,
    begin: impl FnOnce() -> Result<S, FileError> + Send + 'static,
) -> Result<S::Done, ApiError> {
    // None is the end; a sender that goes away without it means that there was none.
    let (pieces, mut coming) = mpsc::channel::<Option<Bytes>>(WAITING);
    let writing = blocking(move || {
        let mut sink = begin()?;
        while let Some(piece) = coming.blocking_recv() {
            match piece {
                Some(piece) => sink.write(&piece)?,
                None => return sink.finish(),
            }
        }
        Err(FileError::Cut)
    });
    let reading = async move {
        loop {
            let piece = match body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => Some(data),
                    Err(_) => continue,
                },
                Some(Err(_)) => return,
                None => None,
            };
            let is_end = piece.is_none();
            if pieces.send(piece).await.is_err() || is_end {
                return;
            }
        }
    };
    tokio::pin!(writing, reading);
    let done = tokio::select! {
        done = &mut writing => done,
        () = &mut reading => writing.await,
    };
    Ok(done?)
}

/// The file as a body. It is read as fast as the client takes it.
pub(super) fn send(file: File) -> Body {
    Body::from_stream(pieces_of(file))
}

/// How large the client says that the body is.
pub(super) fn expected_size(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
