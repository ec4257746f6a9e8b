//! The store: everything that must outlive the server, in one SQLite file.
//!
//! One connection writes, several read (WAL). Each method is one transaction, so a crash leaves all of it or nothing.
//! It records what it is told; what may happen when is decided elsewhere.

mod artifacts;
mod build_logs;
mod builds;
mod events;
mod executions;
mod idempotency;
mod key_grants;
mod keys;
mod local_keys;
mod logs;
mod members;
mod metrics;
mod migrate;
mod output;
mod prune;
mod restore;
mod run_cleanups;
mod run_reads;
mod runs;
mod sandboxes;
pub(crate) mod service;
mod session_files;
mod sessions;
mod spawns;
mod template_files;
mod templates;
mod volumes;
mod webhooks;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

pub(crate) use build_logs::{BuildLine, BuildLogQuery};
pub(crate) use builds::{Build, BuildReason, BuildStatus, Tag};
pub(crate) use events::{Event, EventQuery, EventType};
pub(crate) use executions::ExecutionClaim;
pub(crate) use idempotency::Claim;
pub use key_grants::{KeyGrant, Rotation, Scope};
pub(crate) use keys::ApiKey;
pub use keys::{FirstKey, TeamId};
pub use local_keys::LocalKey;
pub(crate) use logs::{Direction, Level, LogLine, LogQuery};
pub(crate) use metrics::Sample;
pub(crate) use output::OutputPosition;
pub(crate) use restore::StoreFile;
pub(crate) use run_cleanups::Cleanup;
pub(crate) use run_reads::RunQuery;
pub(crate) use runs::{InvocationRow, NodeRow, RunRow, RunStatus, RunTurn};
pub(crate) use sandboxes::{InsertError, SandboxRow};
pub(crate) use sessions::SessionRow;
pub(crate) use templates::Template;
pub(crate) use volumes::Volume;
pub(crate) use webhooks::{Delivery, Webhook};

/// A handle to the store; clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    write: SqlitePool,
    read: SqlitePool,
    file: Arc<StoreFilePlace>,
}

/// The file that the connections have open.
#[derive(Debug)]
struct StoreFilePlace {
    path: PathBuf,
    /// Written when the file is put back; held for as long as that takes.
    identity: tokio::sync::Mutex<restore::Identity>,
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened or made.
    #[error("could not open the store {path}")]
    Open { path: String, source: sqlx::Error },
    /// The file was written by a newer version.
    #[error("the store has schema {found}, this version knows schemas up to {known}")]
    Newer { found: i64, known: i64 },
    /// The schema could not be brought up to date.
    #[error("could not bring the store to schema {to}")]
    Migrate { to: i64, source: sqlx::Error },
    /// A statement failed: locked for too long, disk full, file gone.
    #[error("could not {what}")]
    Statement { what: &'static str, source: sqlx::Error },
    /// A row holds something that this version cannot have written.
    #[error("could not read {what}: {value:?} is not valid")]
    Corrupt { what: &'static str, value: String },
}

impl StoreError {
    /// Turns an sqlx error into one that says what was being done.
    fn doing(what: &'static str) -> impl Fn(sqlx::Error) -> Self {
        move |source| Self::Statement { what, source }
    }
}

impl Store {
    /// Opens the store in this file, makes it if need be and brings its schema up to date.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let failed = |source| StoreError::Open { path: path.display().to_string(), source };
        make_private(path).map_err(|source| failed(sqlx::Error::Io(source)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            // It was just made. A connection that is opened later must not begin an empty one.
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        let write = pool(1).connect_with(options.clone()).await.map_err(failed)?;
        migrate::run(&write).await?;
        let read = pool(READERS).connect_with(options.pragma("query_only", "on")).await.map_err(failed)?;
        let identity = restore::identity(path).map_err(|source| failed(sqlx::Error::Io(source)))?;
        let file = StoreFilePlace { path: path.to_owned(), identity: tokio::sync::Mutex::new(identity) };
        Ok(Self { write, read, file: Arc::new(file) })
    }

    /// The directory that the file is in.
    pub(crate) fn directory(&self) -> &Path {
        self.file.path.parent().unwrap_or(Path::new("."))
    }

    /// Writes what is pending and closes the file.
    pub async fn close(&self) {
        self.read.close().await;
        self.write.close().await;
    }
}

/// Connections that read.
const READERS: u32 = 4;

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        // All from the start: they keep the file when its name is gone.
        .min_connections(connections)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(Duration::from_secs(10))
        // A ping before every use would double the cost of the short statements that all of ours are.
        .test_before_acquire(false)
}

/// Makes the file before SQLite does, so that nobody else can ever read the tokens in it.
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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
        sqlx::query("PRAGMA user_version = 999").execute(&store.write).await.unwrap();
        store.close().await;
        assert!(matches!(Store::open(&path).await, Err(StoreError::Newer { found: 999, .. })));
    }
}
