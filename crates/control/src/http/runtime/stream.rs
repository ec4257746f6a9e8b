//! Files of the host as bodies: read and written piece by piece, on threads that may block.

use std::io::{self, Read as _};
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::header;
use tokio::sync::mpsc;

use super::super::error::{ApiError, is_in_the_way};
use crate::sessions::{HostTree, RelPath, SessionError, WorkspaceError, content_type};

const CHUNK: usize = 256 << 10;

/// A file as an answer. Browsers are to save it, never to show it: its contents are a stranger's.
pub(super) async fn send(tree: Arc<HostTree>, path: RelPath) -> Result<Response, ApiError> {
    let kind = content_type(path.as_str());
    let opening = tokio::task::spawn_blocking(move || tree.read(&path).map(|found| (found, path)));
    let ((mut file, facts), path) = match opening.await.map_err(|_| SessionError::Aborted)? {
        Ok(opened) => opened,
        Err(_) => return Err(ApiError::not_found("the file is gone")),
    };
    let (pieces, queue) = mpsc::channel::<io::Result<Bytes>>(4);
    tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; CHUNK];
        // As many bytes as the head promises, although it may grow meanwhile.
        let mut left = facts.size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let piece = match file.read(&mut buffer[..most]) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => Ok(Bytes::copy_from_slice(&buffer[..n])),
                Err(error) => Err(error),
            };
            left = left.saturating_sub(piece.as_ref().map_or(left, |piece| piece.len() as u64));
            if pieces.blocking_send(piece).is_err() {
                return;
            }
        }
    });
    let body =
        futures::stream::unfold(queue, |mut queue| async move { queue.recv().await.map(|piece| (piece, queue)) });
    let name = path.as_str().rsplit('/').next().unwrap_or_default();
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let response = Response::builder()
        .header(header::CONTENT_TYPE, kind)
        .header(header::CONTENT_LENGTH, facts.size)
        .header(header::CONTENT_DISPOSITION, format!("attachment; filename*=utf-8''{name}"))
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .body(Body::from_stream(body));
    Ok(response.expect("the type is a constant and the name is encoded"))
}

/// Writes what comes into a file, at most so many bytes. Gives its size.
pub(super) async fn receive<E>(
    tree: Arc<HostTree>,
    path: RelPath,
    pieces: impl Stream<Item = Result<Bytes, E>>,
    most: u64,
) -> Result<u64, ApiError> {
    let (sender, mut queue) = mpsc::channel::<io::Result<Bytes>>(4);
    let shown = path.as_str().to_owned();
    let writing = tokio::task::spawn_blocking(move || tree.write(&path, true, || queue.blocking_recv().transpose()));
    let mut taken: u64 = 0;
    let mut refusal = None;
    let mut pieces = std::pin::pin!(pieces);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::bad_request("the request body could not be read"));
        let piece = piece.and_then(|piece| {
            taken += piece.len() as u64;
            if taken > most { Err(ApiError::too_large(usize::try_from(most).unwrap_or(usize::MAX))) } else { Ok(piece) }
        });
        let broken = piece.is_err();
        let piece = piece.map_err(|error| {
            refusal = Some(error);
            io::Error::from(io::ErrorKind::BrokenPipe)
        });
        if sender.send(piece).await.is_err() || broken {
            break;
        }
    }
    drop(sender);
    let written = writing.await.map_err(|_| SessionError::Aborted)?;
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    match written {
        Ok((facts, _)) => Ok(facts.size),
        Err(error) if is_in_the_way(&error) => {
            Err(ApiError::conflict(format!("{shown:?} cannot be written: something else is in the way")))
        }
        Err(source) => {
            Err(SessionError::from(WorkspaceError::Host { what: "write", path: shown.into(), source }).into())
        }
    }
}
