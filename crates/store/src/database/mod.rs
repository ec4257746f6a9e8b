//! The database: opening it, bringing it up to date, restoring it, and one way to speak with SQLite and PostgreSQL.

mod db;
mod file;
mod migrate;
mod migrations;
mod restore;
mod server;

use std::path::Path;
use std::sync::Arc;

pub(crate) use db::{Pool, QueryBuilder, Row, Transaction, query};
pub use restore::StoreFile;
pub(crate) use server::POSTGRES_NOW;

/// A handle to the store; clones share it.
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

/// What the connections to the database do.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// `sqlite` or `postgres`.
    pub kind: &'static str,
    pub open: usize,
    pub busy: usize,
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
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(self, Self::Statement { source: sqlx::Error::Database(error), .. } if error.is_unique_violation())
    }

    /// Turns an sqlx error into one that says what was being done.
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

    /// How busy the connections are.
    pub fn connections(&self) -> Connections {
        let pools: &[&Pool] = match &*self.place {
            Place::File(_) => &[&self.write, &self.read],
            Place::Server(_) => &[&self.write],
        };
        let (open, idle) =
            pools.iter().map(|pool| pool.counts()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Connections { kind: self.write.kind(), open, busy: open.saturating_sub(idle) }
    }

    /// Whether other servers may use the same database.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(&*self.place, Place::Server(_))
    }

    /// Who this server is in its rows. A file has one server, without a name.
    pub(crate) fn server(&self) -> &str {
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

#[cfg(any(test, feature = "testing"))]
impl Store {
    /// The store of a test's directory, in a file or in PostgreSQL as the run of the tests wants it.
    pub async fn for_test(dir: &Path) -> Self {
        if !crate::testing::postgres::is_wanted() {
            return Self::open(dir.join("isopod.db")).await.expect("a file in a test's directory");
        }
        Self::connect(&crate::testing::postgres::database_for(dir).await, dir, "test")
            .await
            .expect("a database of the test's own")
    }
}
