//! The store in one SQLite file. One connection writes, several read (WAL).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, SqlitePool};

use super::db::Pool;
use super::{Place, Store, StoreError, migrate, restore};

/// The file that the connections have open.
#[derive(Debug)]
pub(super) struct StoreFilePlace {
    pub(super) path: PathBuf,
    pub(super) write: SqlitePool,
    pub(super) read: SqlitePool,
    /// The identity of the file. It changes when the file is restored, and the lock is held during that time.
    pub(super) identity: tokio::sync::Mutex<restore::Identity>,
}

impl StoreFilePlace {
    /// The directory that the file is in.
    pub(super) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }
}

impl Store {
    /// Opens the store in this file. Creates the file if necessary and updates its schema.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let failed = |source| StoreError::Open { path: path.display().to_string(), source };
        make_private(path).map_err(|source| failed(sqlx::Error::Io(source)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            // The file was just created. A connection that is opened later must not create an empty one.
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        let write = pool(1).connect_with(options.clone()).await.map_err(failed)?;
        migrate::sqlite(&write).await?;
        let read = pool(READERS).connect_with(options.pragma("query_only", "on")).await.map_err(failed)?;
        all_open(&read).await.map_err(failed)?;
        let identity = restore::identity(path).map_err(|source| failed(sqlx::Error::Io(source)))?;
        let place = StoreFilePlace {
            path: path.to_owned(),
            write: write.clone(),
            read: read.clone(),
            identity: tokio::sync::Mutex::new(identity),
        };
        Ok(Self {
            // A transaction that writes waits for its turn at the start, not in the middle.
            write: Pool::Sqlite(write, "BEGIN IMMEDIATE"),
            read: Pool::Sqlite(read, "BEGIN"),
            place: Arc::new(Place::File(place)),
        })
    }
}

/// The number of connections that read.
pub(super) const READERS: u32 = 4;

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        // Open all of them at the start, because they keep the file alive if its name is removed.
        .min_connections(connections)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(Duration::from_secs(10))
        // A ping before every use would double the cost, because all our statements are short.
        .test_before_acquire(false)
        // SQLite ends a transaction by itself if the disk is full or fails. The rollback after it then finds none, and
        // sqlx believes that the transaction is still open. No other transaction could start on that connection, so it
        // is closed.
        .before_acquire(|connection, _| Box::pin(std::future::ready(Ok(!connection.is_in_transaction()))))
}

/// The pool opens its connections in two tasks at once and waits only for one of them. If the file is removed right
/// afterwards, no connection may still be missing.
async fn all_open(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    let mut held = Vec::new();
    for _ in 0..READERS {
        held.push(pool.acquire().await?);
    }
    Ok(())
}

/// Creates the file before SQLite does, so that no other user can ever read the tokens in it.
pub(super) fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::db::query;
    use super::*;

    #[tokio::test]
    async fn a_store_is_private_and_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isopod.db");
        Store::open(&path).await.unwrap().close().await;
        Store::open(&path).await.unwrap().close().await;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_store_of_a_newer_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isopod.db");
        let store = Store::open(&path).await.unwrap();
        store.tamper("PRAGMA user_version = 999").await.unwrap();
        store.close().await;
        assert!(matches!(Store::open(&path).await, Err(StoreError::Newer { found: 999, .. })));
    }

    #[tokio::test]
    async fn a_store_whose_disk_was_full_is_written_to_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("isopod.db")).await.unwrap();
        let large = "x".repeat(1 << 20);
        let write = async || {
            let mut transaction = store.write.begin().await?;
            for _ in 0..8 {
                let statement =
                    "INSERT INTO sandbox_logs (sandbox, at, level, message, fields) VALUES ('s', 1, 'info', ?, '{}')";
                query(statement).bind(&large).execute(&mut transaction).await?;
            }
            transaction.commit().await
        };
        // Simulate a disk with room for only about two million more bytes.
        store.tamper("PRAGMA max_page_count = 600").await.unwrap();
        let refused = write().await.unwrap_err().to_string();
        assert!(refused.contains("full"), "{refused}");
        store.tamper("PRAGMA max_page_count = 1000000").await.unwrap();
        write().await.unwrap();
        write().await.unwrap();
        store.close().await;
    }
}
