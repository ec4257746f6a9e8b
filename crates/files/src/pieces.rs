//! Streams the bytes of an open file, and reads it on threads that may block.
//!
//! A separate call reads each piece. A slow reader holds one piece in memory but no thread. Threads are limited, and
//! all file operations need them.

use std::fs::File;
use std::io::{self, Read as _};

use bytes::Bytes;
use futures::{Stream, stream};
use tokio::task::JoinHandle;

const PIECE: usize = 256 << 10;

/// A piece that is being read, with the file and the number of bytes left after it.
type Reading = JoinHandle<io::Result<Option<(Bytes, File, u64)>>>;

/// Streams the rest of the file. Stops when the stream is dropped.
pub fn pieces_of(file: File) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream_of(file, u64::MAX, false)
}

/// Streams exactly `size` bytes of the file, even if it grows meanwhile. Fails if it shrinks.
pub fn exactly(file: File, size: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream_of(file, size, true)
}

fn stream_of(file: File, most: u64, is_promised: bool) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    // Read the next piece while the last one is on its way to the reader.
    stream::try_unfold(read_on(file, most, is_promised), move |reading| async move {
        let Some((piece, file, left)) = reading.await?? else { return Ok(None) };
        Ok(Some((piece, read_on(file, left, is_promised))))
    })
}

fn read_on(mut file: File, left: u64, is_promised: bool) -> Reading {
    tokio::task::spawn_blocking(move || {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let mut piece = vec![0; most];
        let length = if most == 0 { 0 } else { file.read(&mut piece)? };
        if length == 0 {
            let is_short = is_promised && left > 0;
            return if is_short { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
        }
        piece.truncate(length);
        Ok(Some((piece.into(), file, left - length as u64)))
    })
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, TryStreamExt as _};

    use super::*;

    #[tokio::test]
    async fn a_file_comes_whole_and_as_far_as_it_was_promised() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let contents: Vec<u8> = (0..PIECE * 2 + 7).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let open = || File::open(&path).unwrap();
        let all: Vec<Bytes> = pieces_of(open()).try_collect().await.unwrap();
        assert_eq!((all.len(), all.concat() == contents), (3, true));
        for size in [0, 5, PIECE, contents.len()] {
            let some: Vec<Bytes> = exactly(open(), size as u64).try_collect().await.unwrap();
            assert!(some.concat() == contents[..size], "{size}");
        }
        let (good, bad): (Vec<_>, Vec<_>) =
            exactly(open(), contents.len() as u64 + 1).collect::<Vec<_>>().await.into_iter().partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (3, 1), "a file that has shrunk is not taken for a whole one");
    }
}
