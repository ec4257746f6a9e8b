//! An open file as a stream of its bytes, read where waiting for the disk is no harm.

use std::fs::File;
use std::io::{self, Read as _};

use bytes::Bytes;
use futures::{Stream, stream};
use tokio::sync::mpsc;

/// Pieces that wait for their reader.
const WAITING: usize = 8;
const PIECE: usize = 256 << 10;

/// The rest of the file. A reader that goes away ends it.
pub(crate) fn pieces_of(mut file: File) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (pieces, coming) = mpsc::channel::<io::Result<Bytes>>(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; PIECE];
        loop {
            let read = match file.read(&mut piece) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(&piece[..length])),
                Err(error) => Err(error),
            };
            let is_broken = read.is_err();
            if pieces.blocking_send(read).is_err() || is_broken {
                return;
            }
        }
    });
    stream::unfold(coming, |mut coming| async move { coming.recv().await.map(|piece| (piece, coming)) })
}
