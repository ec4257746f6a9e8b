//! A file that a client writes at its own speed.

use bytes::Bytes;
use tokio::task::{JoinError, spawn_blocking};

use crate::error::FileError;

/// Receives the pieces of a file. The file exists after `finish`. If the sink is dropped before that, nothing has
/// changed.
pub trait FileSink: Send + 'static {
    /// What `finish` returns about the file.
    type Done: Send + 'static;
    type Error: Send + 'static;

    fn write(&mut self, piece: &Bytes) -> Result<(), Self::Error>;
    fn finish(self) -> Result<Self::Done, Self::Error>;
}

/// Runs a function that waits for the disk or for S3 on a thread that may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    spawn_blocking(work).await.unwrap_or(Err(FileError::Aborted))
}

/// A sink whose calls run on threads that may block. Between two calls it holds no thread, however slow its writer is.
/// If it is dropped before its end, the inner sink is dropped on such a thread too.
#[derive(Debug)]
pub struct Offloaded<S: FileSink>(Option<S>);

impl<S: FileSink> Offloaded<S>
where
    S::Error: From<JoinError>,
{
    pub async fn begin(begin: impl FnOnce() -> Result<S, S::Error> + Send + 'static) -> Result<Self, S::Error> {
        Ok(Self(Some(spawn_blocking(begin).await??)))
    }

    pub async fn write(self, piece: Bytes) -> Result<Self, S::Error> {
        let mut sink = self.into_sink();
        Self::begin(move || sink.write(&piece).map(|()| sink)).await
    }

    pub async fn finish(self) -> Result<S::Done, S::Error> {
        let sink = self.into_sink();
        spawn_blocking(move || sink.finish()).await?
    }

    fn into_sink(mut self) -> S {
        self.0.take().expect("only this method takes the sink, and it consumes self")
    }
}

impl<S: FileSink> Drop for Offloaded<S> {
    fn drop(&mut self) {
        let Some(sink) = self.0.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(sink))),
            Err(_) => drop(sink),
        }
    }
}
