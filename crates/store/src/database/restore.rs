//! Restores the store's file if it was removed under the running server.
//!
//! SQLite does not notice the removal. Its connections continue to write to a file without a name, and the next server
//! would find nothing. The connections still have the whole content, so it can be written out again. If another file
//! has taken its place, that file belongs to someone else and stays, and a message is logged.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::copy::write_copy;
use super::file::{READERS, StoreFilePlace};
use super::{Place, Store, StoreError};

/// The device and the inode of a file.
pub(super) type Identity = (u64, u64);

/// The state of the store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFile {
    /// It is where it should be.
    InPlace,
    /// It was missing and has been restored.
    Restored,
    /// Another file has its name.
    Replaced,
}

pub(super) fn identity(path: &Path) -> io::Result<Identity> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Store {
    /// Checks whether the file still exists, and restores it if not.
    pub async fn ensure_file(&self) -> Result<StoreFile, StoreError> {
        match &*self.place {
            Place::File(file) => file.ensure().await,
            // A database server takes care of its own files.
            Place::Server(_) => Ok(StoreFile::InPlace),
        }
    }
}

impl StoreFilePlace {
    async fn ensure(&self) -> Result<StoreFile, StoreError> {
        let mut known = self.identity.lock().await;
        match identity(&self.path) {
            Ok(found) if found == *known => return Ok(StoreFile::InPlace),
            Ok(_) => return Ok(StoreFile::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(self.not_restored(sqlx::Error::Io(error))),
        }
        *known = self.restore().await.map_err(|error| self.not_restored(error))?;
        Ok(StoreFile::Restored)
    }

    /// Holds all connections during the copy, so that nothing is written to the old file afterwards, and all
    /// connections open the new file.
    async fn restore(&self) -> Result<Identity, sqlx::Error> {
        let mut writer = self.write.acquire().await?;
        let mut readers = Vec::new();
        for _ in 0..READERS {
            readers.push(self.read.acquire().await?);
        }
        let copy = beside(&self.path, ".restored");
        write_copy(&mut writer, &copy).await?;
        // The last connection that closes removes the old log by its name. So this must happen before the new file gets
        // the name.
        for reader in readers {
            reader.close().await?;
        }
        writer.close().await?;
        remove(&beside(&self.path, "-wal"))?;
        remove(&beside(&self.path, "-shm"))?;
        std::fs::File::open(&copy)?.sync_all()?;
        std::fs::rename(&copy, &self.path)?;
        Ok(identity(&self.path)?)
    }

    fn not_restored(&self, source: sqlx::Error) -> StoreError {
        StoreError::Open { path: self.path.display().to_string(), source }
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_was_removed_comes_back_with_all_that_was_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isopod.db");
        let store = Store::open(&path).await.unwrap();
        let key = store.create_team("first").await.unwrap();
        assert_eq!(store.ensure_file().await.unwrap(), StoreFile::InPlace);
        for name in ["isopod.db", "isopod.db-wal", "isopod.db-shm"] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        store.create_team("while it was gone").await.unwrap();
        assert_eq!(store.ensure_file().await.unwrap(), StoreFile::Restored);
        assert_eq!(store.ensure_file().await.unwrap(), StoreFile::InPlace);
        store.create_team("afterwards").await.unwrap();
        store.close().await;
        let store = Store::open(&path).await.unwrap();
        assert_eq!(store.list_teams().await.unwrap().len(), 3);
        assert!(store.find_key(&crate::secrets::hash_key(&key.0)).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_file_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isopod.db");
        let store = Store::open(&path).await.unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        std::fs::write(&path, "not ours").unwrap();
        assert_eq!(store.ensure_file().await.unwrap(), StoreFile::Replaced);
        assert_eq!(std::fs::read(&path).unwrap(), b"not ours");
    }
}
