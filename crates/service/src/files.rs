//! Reads and writes files of a sandbox, streamed and counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use isopod_store::service::Record;

use super::access::{Access, Operation};
use super::backend::{FileBody, FileRead};
use super::pause::live_sandbox;
use super::{Service, ServiceError};

impl Service {
    /// Writes a file. Returns its size.
    pub(crate) async fn write_file(
        &self,
        access: &Access,
        id: &str,
        path: &str,
        user: Option<&str>,
        contents: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<i64, ServiceError> {
        let row = self.find(access, Operation::Write, id).await?;
        let sandbox = live_sandbox(&row)?;
        let count = Arc::new(AtomicI64::new(0));
        let counting = Arc::clone(&count);
        let counted = contents.inspect(move |piece| {
            let length = piece.as_ref().map_or(0, Bytes::len);
            counting.fetch_add(i64::try_from(length).unwrap_or(0), Ordering::Relaxed);
        });
        if let Err(error) = self.backend.write_file(&sandbox, path, user, FileBody::stream(counted)).await {
            return Err(self.explain(&row, error).await);
        }
        let bytes_in = count.load(Ordering::Relaxed);
        self.recorder.note(Record::Bytes { sandbox: sandbox.to_string(), bytes_in, bytes_out: 0 }).await;
        Ok(bytes_in)
    }

    /// Opens a file. Its size is counted if the backend reports it.
    pub(crate) async fn read_file(
        &self,
        access: &Access,
        id: &str,
        path: &str,
        user: Option<&str>,
    ) -> Result<FileRead, ServiceError> {
        let row = self.find(access, Operation::Read, id).await?;
        let sandbox = live_sandbox(&row)?;
        let file = match self.backend.read_file(&sandbox, path, user).await {
            Ok(file) => file,
            Err(error) => return Err(self.explain(&row, error).await),
        };
        let bytes_out = i64::try_from(file.size.unwrap_or_default()).unwrap_or(i64::MAX);
        self.recorder.note(Record::Bytes { sandbox: sandbox.to_string(), bytes_in: 0, bytes_out }).await;
        Ok(file)
    }
}
