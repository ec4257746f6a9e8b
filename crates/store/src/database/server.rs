//! The store in a PostgreSQL database, which several servers may share. Each server keeps its files and its id in its
//! own state directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::db::Pool;
use super::{Place, Store, StoreError, migrate};
use crate::secrets::new_uuid;

/// What a server has besides the database.
#[derive(Debug)]
pub(super) struct ServerPlace {
    directory: PathBuf,
    identity: String,
}

impl ServerPlace {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }
}

/// PostgreSQL's clock in milliseconds, which all servers share.
pub(crate) const POSTGRES_NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The number of connections of one server.
const CONNECTIONS: u32 = 16;
/// Limits, so that nothing waits forever for a lock, or for a server that disappeared during a transaction.
const LIMITS: [(&str, &str); 3] =
    [("lock_timeout", "5s"), ("statement_timeout", "60s"), ("idle_in_transaction_session_timeout", "60s")];
/// How long a request waits for a connection, for example while the database restarts.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    /// Opens the store in a database and updates its schema. `directory` is this server's state directory, and `name`
    /// is its name for people.
    pub async fn connect(url: &str, directory: impl AsRef<Path>, name: &str) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Open { path: shown(url), source: sqlx::Error::Io(source) };
        let identity = server_id(directory.as_ref()).map_err(failed)?;
        let store = Self::connect_as(url, ServerPlace { directory: directory.as_ref().to_owned(), identity }).await?;
        store.register_server(name).await?;
        Ok(store)
    }

    /// Like [`Self::connect`], for a tool that reads records or manages keys and is not a server.
    pub async fn connect_as_tool(url: &str) -> Result<Self, StoreError> {
        Self::connect_as(url, ServerPlace { directory: PathBuf::new(), identity: String::new() }).await
    }

    async fn connect_as(url: &str, place: ServerPlace) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Open { path: shown(url), source };
        let options: PgConnectOptions = url.parse().map_err(failed)?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(TIMEOUT)
            .connect_with(options.application_name("isopod").options(LIMITS))
            .await
            .map_err(failed)?;
        migrate::postgres(&pool).await?;
        let pool = Pool::Postgres(pool);
        Ok(Self { write: pool.clone(), read: pool, place: Arc::new(Place::Server(place)) })
    }
}

/// The URL without its secret parts.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    // The password contains a question mark that is not encoded as %3F.
    if rest.find('?').is_some_and(|question| rest[question..].contains('@')) {
        return format!("{scheme}://…");
    }
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{place}")
}

/// The id of the server with this state directory. It is created once, with the directory.
///
/// # Errors
/// If the file with the id cannot be read or created.
pub fn server_id(directory: &Path) -> io::Result<String> {
    let path = directory.join("server-id");
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let id = new_uuid();
    let fresh = directory.join(".server-id.new");
    std::fs::write(&fresh, &id)?;
    std::fs::File::open(&fresh)?.sync_all()?;
    std::fs::rename(&fresh, &path)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_database_and_no_password() {
        assert_eq!(shown("postgres://me:se@cret@db:5432/isopod?sslmode=require"), "postgres://db:5432/isopod");
        assert_eq!(shown("postgresql://db/isopod?password=secret"), "postgresql://db/isopod");
        assert_eq!(shown("postgres://me:sec?ret@db/isopod"), "postgres://…");
    }

    #[test]
    fn a_server_keeps_its_id_with_its_directory() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = server_id(one.path()).unwrap();
        assert_eq!(server_id(one.path()).unwrap(), id);
        assert_ne!(server_id(other.path()).unwrap(), id);
    }
}
