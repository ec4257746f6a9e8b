//! Contents of files, in and out.

use futures::stream;
use isopod_guest_client::Guest;
use isopod_guest_client::guest::{Download, Upload};

use super::super::{BackendError, FileBody, FileRead};
use super::{Phase, of_guest};

pub(in super::super) async fn write_file(
    guest: Guest,
    path: &str,
    user: Option<&str>,
    contents: FileBody,
) -> Result<(), BackendError> {
    let contents = match contents {
        FileBody::Bytes(bytes) => Upload::from(bytes),
        FileBody::Stream(pieces) => Upload::stream(pieces),
    };
    let written = named(guest, user).write_file(path, contents).await;
    written.map(drop).map_err(|error| of_guest(error, Phase::Opening))
}

pub(in super::super) async fn read_file(
    guest: Guest,
    path: &str,
    user: Option<&str>,
) -> Result<FileRead, BackendError> {
    let download = named(guest, user).read_file(path).await.map_err(|error| of_guest(error, Phase::Opening))?;
    let size = download.size();
    Ok(FileRead { size, body: Box::pin(stream::try_unfold(download, next_piece)) })
}

async fn next_piece(mut download: Download) -> Result<Option<(bytes::Bytes, Download)>, BackendError> {
    let piece = download.next().await.map_err(|error| of_guest(error, Phase::Streaming))?;
    Ok(piece.map(|piece| (piece, download)))
}

fn named(guest: Guest, user: Option<&str>) -> Guest {
    match user {
        Some(user) => guest.with_user(user),
        None => guest,
    }
}
