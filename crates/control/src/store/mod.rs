//! The store: everything that must outlive the server, in one SQLite file or in a PostgreSQL database.
//!
//! Each method is one transaction, so a crash leaves all of it or nothing. It records what it is told; what may happen
//! when is decided elsewhere. The statements are the same for both databases: see `db`.

mod artifacts;
mod build_logs;
mod builds;
mod db;
mod dialect;
mod events;
mod executions;
mod file;
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
mod server;
pub(crate) mod service;
mod session_files;
mod sessions;
mod spawns;
mod template_files;
mod templates;
mod volumes;
mod webhooks;
mod whereabouts;

use std::path::Path;
use std::sync::Arc;

use db::Pool;

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
pub(crate) use whereabouts::Thing;

/// A handle to the store; clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    write: Pool,
    read: Pool,
    place: Arc<Place>,
}

/// Where the records are.
#[derive(Debug)]
enum Place {
    File(file::StoreFilePlace),
    Server(server::ServerPlace),
}

/// What the connections to the database do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connections {
    /// `sqlite` or `postgres`.
    pub(crate) kind: &'static str,
    pub(crate) open: usize,
    pub(crate) busy: usize,
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened or made, or the server cannot be reached.
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
    /// What was asked for is with another server on the same database.
    #[error("it is on another server: {server}")]
    Elsewhere { server: String },
    /// A row holds something that this version cannot have written.
    #[error("could not read {what}: {value:?} is not valid")]
    Corrupt { what: &'static str, value: String },
}

impl StoreError {
    /// A row of that key is there already.
    fn is_duplicate(&self) -> bool {
        matches!(self, Self::Statement { source: sqlx::Error::Database(error), .. } if error.is_unique_violation())
    }

    /// Turns an sqlx error into one that says what was being done.
    fn doing(what: &'static str) -> impl Fn(sqlx::Error) -> Self {
        move |source| Self::Statement { what, source }
    }
}

impl Store {
    /// The directory for files that belong to the records.
    pub(crate) fn directory(&self) -> &Path {
        match &*self.place {
            Place::File(file) => file.directory(),
            Place::Server(server) => server.directory(),
        }
    }

    /// How busy the connections are.
    pub(crate) fn connections(&self) -> Connections {
        let pools: &[&Pool] = match &*self.place {
            Place::File(_) => &[&self.write, &self.read],
            Place::Server(_) => &[&self.write],
        };
        let (open, idle) =
            pools.iter().map(|pool| pool.counts()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Connections { kind: self.write.kind(), open, busy: open.saturating_sub(idle) }
    }

    /// Who this server is in its rows. A file has one server, without a name.
    fn server(&self) -> &str {
        match &*self.place {
            Place::File(_) => "",
            Place::Server(server) => server.identity(),
        }
    }

    /// Writes what is pending and closes the connections.
    pub async fn close(&self) {
        self.read.close().await;
        self.write.close().await;
    }
}

#[cfg(test)]
#[path = "../../tests/support/postgres.rs"]
pub(crate) mod postgres;

#[cfg(test)]
impl Store {
    /// The store of a test's directory, in a file or in PostgreSQL as the run of the tests wants it.
    pub(crate) async fn for_test(dir: &Path) -> Self {
        if !postgres::is_wanted() {
            return Self::open(dir.join("isopod.db")).await.expect("a file in a test's directory");
        }
        Self::connect(&postgres::database_for(dir).await, dir, "test").await.expect("a database of the test's own")
    }
}
