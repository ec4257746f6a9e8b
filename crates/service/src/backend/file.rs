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
    /// All of it. Can be sent again when the first try broke.
    Bytes(Bytes),
    /// What a stream gives, as fast as the sandbox takes it. Sent once.
    Stream(BoxStream<'static, io::Result<Bytes>>),
}

impl FileBody {
    /// What a stream gives.
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

/// A file on its way out. Reading slowly slows the sandbox down.
pub struct FileRead {
    /// How large it is, if that is known.
    pub size: Option<u64>,
    /// Its pieces. They end with the file or with an error.
    pub body: BoxStream<'static, Result<Bytes, BackendError>>,
}

impl FileRead {
    /// All of it, in memory.
    ///
    /// # Errors
    /// When the way broke, and [`BackendError::Invalid`] when it is longer than `most` bytes.
    pub async fn collect(mut self, most: usize) -> Result<Vec<u8>, BackendError> {
        let mut all = Vec::new();
        while let Some(piece) = self.body.next().await {
            let piece = piece?;
            if all.len() + piece.len() > most {
                return Err(BackendError::invalid(format!("the file is longer than {most} bytes")));
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
