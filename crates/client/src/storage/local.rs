//! Copies files of this machine into the storage.

use std::path::Path;

use isopod_guest_client::guest::Upload;

use super::{FileStorage, StorageError};

impl FileStorage {
    /// Stores a copy of a local file. Returns its path.
    ///
    /// # Errors
    /// [`StorageError::Local`] if it cannot be read, otherwise like [`Self::put`].
    pub async fn copy_local(&self, local: impl AsRef<Path>, key: &str) -> Result<String, StorageError> {
        let local = local.as_ref();
        let file = tokio::fs::File::open(local).await.map_err(failed("open", local))?;
        self.put(key, Upload::reader(file), None).await
    }

    /// Stores a local file, and removes it here afterwards.
    ///
    /// # Errors
    /// Like [`Self::copy_local`].
    pub async fn move_local(&self, local: impl AsRef<Path>, key: &str) -> Result<String, StorageError> {
        let local = local.as_ref();
        let stored = self.copy_local(local, key).await?;
        tokio::fs::remove_file(local).await.map_err(failed("remove", local))?;
        Ok(stored)
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StorageError {
    let path = path.display().to_string();
    move |source| StorageError::Local { doing, path, source }
}
