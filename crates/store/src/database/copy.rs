//! Copies of the store's file, taken while servers use it.

use std::io;
use std::path::Path;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::file::make_private;
use super::{Place, Store, StoreError};

impl Store {
    /// Writes all records to a new file, which only its owner can read. Nobody has to wait for it. Returns false if the
    /// records are in a database server, which has tools of its own for this.
    pub async fn copy_to(&self, path: &Path) -> Result<bool, StoreError> {
        let Place::File(file) = &*self.place else { return Ok(false) };
        let failed = |source| StoreError::Open { path: path.display().to_string(), source };
        let mut writer = file.write.acquire().await.map_err(failed)?;
        write_copy(&mut writer, path).await.map_err(failed)?;
        Ok(true)
    }
}

/// Whatever was at `path` is gone afterwards.
pub(super) async fn write_copy(connection: &mut SqliteConnection, path: &Path) -> Result<(), sqlx::Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    make_private(path)?;
    let name = path.to_string_lossy().replace('\'', "''");
    sqlx::raw_sql(AssertSqlSafe(format!("VACUUM INTO '{name}'"))).execute(connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::secrets::hash_key;

    #[tokio::test]
    async fn a_copy_has_all_that_was_written_before_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("isopod.db")).await.unwrap();
        let key = store.create_team("first").await.unwrap();
        let copy = dir.path().join("copy.db");
        assert!(store.copy_to(&copy).await.unwrap());
        let later = store.create_team("later").await.unwrap();
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        store.close().await;
        let copied = Store::open(&copy).await.unwrap();
        assert!(copied.find_key(&hash_key(&key.0)).await.unwrap().is_some());
        assert!(copied.find_key(&hash_key(&later.0)).await.unwrap().is_none());
        copied.close().await;
    }
}
