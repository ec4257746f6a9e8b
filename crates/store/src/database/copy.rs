//! Copies of the store's file, taken while servers use it.

use std::io;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use super::file::make_private;
use super::{Store, StoreError};

impl Store {
    /// Writes all records in the file `from` to a new file, which only its owner can read. Servers can use `from` meanwhile.
    /// Its schema stays as it is, because a server of another version may be using it.
    pub async fn copy_file(from: &Path, to: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::Open { path: from.display().to_string(), source };
        let options = SqliteConnectOptions::new().filename(from).create_if_missing(false).busy_timeout(BUSY_TIMEOUT);
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(failed)?;
        let copied = write_copy(&mut connection, to).await;
        let closed = connection.close().await;
        copied.and(closed).map_err(failed)
    }
}

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

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
        Store::copy_file(&dir.path().join("isopod.db"), &copy).await.unwrap();
        let later = store.create_team("later").await.unwrap();
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        store.close().await;
        let copied = Store::open(&copy).await.unwrap();
        assert!(copied.find_key(&hash_key(&key.0)).await.unwrap().is_some());
        assert!(copied.find_key(&hash_key(&later.0)).await.unwrap().is_none());
        copied.close().await;
    }

    /// A server of another version may be using it, and refuses a schema that it does not know.
    #[tokio::test]
    async fn a_copy_leaves_the_schema_of_its_source_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (old, copy) = (dir.path().join("old.db"), dir.path().join("copy.db"));
        let options = SqliteConnectOptions::new().filename(&old).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("CREATE TABLE kept (text TEXT); INSERT INTO kept VALUES ('x'); PRAGMA user_version = 1")
            .execute(&mut connection)
            .await
            .unwrap();
        Store::copy_file(&old, &copy).await.unwrap();
        let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut connection).await.unwrap();
        let tables: i64 =
            sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut connection).await.unwrap();
        assert_eq!((version, tables), (1, 1));
        let copied = SqliteConnectOptions::new().filename(&copy);
        let mut copied = SqliteConnection::connect_with(&copied).await.unwrap();
        let text: String = sqlx::query_scalar("SELECT text FROM kept").fetch_one(&mut copied).await.unwrap();
        assert_eq!(text, "x");
    }
}
