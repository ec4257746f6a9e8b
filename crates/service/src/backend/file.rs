//! Contents of files on their way into and out of sandboxes.

use std::fmt;
use std::io;

use bytes::Bytes;
use futures::Stream;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::BackendError;

/// What to write.
pub enum FileBody {
    /// All contents. Can be sent again if the first attempt broke.
    Bytes(Bytes),
    /// A stream, read as fast as the sandbox accepts it. Sent only once.
    Stream(BoxStream<'static, io::Result<Bytes>>),
}

impl FileBody {
    /// From a stream.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::Stream(pieces.boxed())
    }
}

impl<T: Into<Bytes>> From<T> for FileBody {
    fn from(bytes: T) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl fmt::Debug for FileBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "FileBody({} bytes)", bytes.len()),
            Self::Stream(_) => f.write_str("FileBody(a stream)"),
        }
    }
}

/// A file that is being read. Reading slowly slows the sandbox down.
pub struct FileRead {
    /// Its size, if known.
    pub size: Option<u64>,
    /// Its contents. They end with the file or with an error.
    pub body: BoxStream<'static, Result<Bytes, BackendError>>,
}

impl FileRead {
    /// Reads all of it into memory.
    ///
    /// # Errors If the connection broke. [`BackendError::Invalid`] if the file is longer than `max_bytes`.
    pub async fn collect(mut self, max_bytes: usize) -> Result<Vec<u8>, BackendError> {
        let mut all = Vec::new();
        while let Some(piece) = self.body.next().await {
            let piece = piece?;
            if all.len() + piece.len() > max_bytes {
                return Err(BackendError::invalid(format!("the file is longer than {max_bytes} bytes")));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

impl fmt::Debug for FileRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRead").field("size", &self.size).finish_non_exhaustive()
    }
}
