//! The database: opening it, updating its schema, restoring it, and a common interface to SQLite and PostgreSQL.

mod copy;
mod db;
mod file;
mod migrate;
mod migrations;
mod plain_views;
mod restore;
mod server;

use std::path::Path;
use std::sync::Arc;

pub(crate) use db::{Pool, Query, QueryBuilder, Row, Transaction, query};
pub use plain_views::PlainViewsError;
pub use restore::StoreFile;
pub(crate) use server::POSTGRES_NOW;
pub use server::server_id;

/// A handle to the store. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) write: Pool,
    pub(crate) read: Pool,
    place: Arc<Place>,
}

/// Where the records are.
#[derive(Debug)]
enum Place {
    File(file::StoreFilePlace),
    Server(server::ServerPlace),
}

/// Statistics about the connections to the database.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// `sqlite` or `postgres`.
    pub kind: &'static str,
    pub open: usize,
    pub busy: usize,
}

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened or created, or the database server cannot be reached.
    #[error("could not open the store {path}")]
    Open { path: String, source: sqlx::Error },
    /// A newer version of Isopod has used the database.
    #[error("the store has schema {found}, but this version knows schemas only up to {known}; install a newer version")]
    Newer { found: i64, known: i64 },
    #[error("could not update the store to schema {to}")]
    Migrate { to: i64, source: sqlx::Error },
    /// A statement failed, for example because of a lock timeout, a full disk or a missing file.
    #[error("could not {what}")]
    Statement { what: &'static str, source: sqlx::Error },
    /// Another server on the same database owns the resource.
    #[error("it is on another server: {server}")]
    Elsewhere { id: String, server: String },
    /// Another server on the same database owns the resource, and its lease has run out.
    #[error("it is on the server {server}, which can't be reached at the moment")]
    Unreachable { server: String },
    /// A row contains a value that this version cannot have written.
    #[error("could not read {what}: {value:?} is not valid")]
    Corrupt { what: &'static str, value: String },
}

impl StoreError {
    /// Whether a row with that key already exists.
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(self, Self::Statement { source: sqlx::Error::Database(error), .. } if error.is_unique_violation())
    }

    /// Converts an sqlx error into one that says what was being done.
    pub(crate) fn doing(what: &'static str) -> impl Fn(sqlx::Error) -> Self {
        move |source| Self::Statement { what, source }
    }
}

impl Store {
    /// The directory for files that belong to the records.
    pub fn directory(&self) -> &Path {
        match &*self.place {
            Place::File(file) => file.directory(),
            Place::Server(server) => server.directory(),
        }
    }

    /// How many connections are open and busy.
    pub fn connections(&self) -> Connections {
        let pools: &[&Pool] = match &*self.place {
            Place::File(_) => &[&self.write, &self.read],
            Place::Server(_) => &[&self.write],
        };
        let (open, idle) =
            pools.iter().map(|pool| pool.counts()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Connections { kind: self.write.kind(), open, busy: open.saturating_sub(idle) }
    }

    /// The id of this server, if it shares its database with others.
    pub fn server_id(&self) -> Option<&str> {
        self.is_shared().then(|| self.server())
    }

    /// Whether other servers may use the same database.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(&*self.place, Place::Server(_))
    }

    /// The id of this server in its rows. A file has only one server, whose id is empty.
    pub(crate) fn server(&self) -> &str {
        match &*self.place {
            Place::File(_) => "",
            Place::Server(server) => server.identity(),
        }
    }

    /// Writes pending data and closes the connections.
    pub async fn close(&self) {
        self.read.close().await;
        self.write.close().await;
    }
}

#[cfg(any(test, feature = "testing"))]
impl Store {
    /// The store for a test's directory, in a file or in PostgreSQL, depending on `ISOPOD_TEST_STORE`.
    pub async fn for_test(dir: &Path) -> Self {
        if !crate::testing::postgres::is_wanted() {
            return Self::open(dir.join("isopod.db")).await.expect("could not open a store in the test's directory");
        }
        Self::connect(&crate::testing::postgres::database_for(dir).await, dir, "test")
            .await
            .expect("could not connect to the test's database")
    }
}
