//! `GET /checkpoint/files` and `PUT /restore/files`: the files that are in memory, and so not in the sandbox's layer.
//!
//! Both run on the guest's main thread, a piece at a time. Nothing in memory keeps it waiting, and another thread would take a
//! pid that a process may need which is restored next.

mod entry;
mod memory;
mod pack;
mod unpack;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::checkpoint::files::memory::Place;
use crate::checkpoint::files::pack::Pack;
use crate::checkpoint::files::unpack::{Unpack, UnpackError};
use crate::checkpoint::{Checkpoint, Phase, conflict};
use crate::http::{HttpError, Reply, status_reply, stream_body};

/// Streams the files. The stream is cut if one cannot be read.
pub(super) async fn save(checkpoint: &Checkpoint) -> Result<Reply, HttpError> {
    let Phase::Held(_) = *checkpoint.phase.lock().await else { return Err(conflict("the sandbox is not held")) };
    let body = stream_body(Pack::new(Place::all()), |mut pack| async move {
        let piece = pack.next().transpose()?;
        // Lets other tasks run: there is nothing here to wait for.
        tokio::task::yield_now().await;
        Some((piece.map(Bytes::from), pack))
    });
    let mut reply = Response::new(body);
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(reply)
}

/// Writes the files. Those that are there already are replaced.
pub(super) async fn restore(checkpoint: &Checkpoint, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let Phase::Running = *checkpoint.phase.lock().await else {
        return Err(conflict("files are restored before processes"));
    };
    let (mut unpack, mut body) = (Unpack::new(Place::all()), request.into_body());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| refused(format!("cannot read request body: {error}")))?;
        if let Ok(data) = frame.into_data() {
            unpack.put(&data).map_err(unpack_error)?;
        }
    }
    unpack.finish().map_err(unpack_error)?;
    Ok(status_reply(StatusCode::NO_CONTENT))
}

fn unpack_error(error: UnpackError) -> HttpError {
    match &error {
        UnpackError::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            HttpError::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
        }
        _ => refused(error.to_string()),
    }
}

fn refused(message: String) -> HttpError {
    HttpError::new(StatusCode::BAD_REQUEST, message)
}
