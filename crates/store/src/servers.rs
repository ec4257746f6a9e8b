//! The servers that share a database. Each renews a lease by the database's clock, so that the others know whether it
//! still answers for what is its own.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{Store, StoreError};
use crate::clock::{Timestamp, millis};
use crate::database::{POSTGRES_NOW, Row, query};

/// A server that shares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    pub id: String,
    pub name: String,
    /// Empty for servers of versions that don't record it.
    pub version: String,
    /// When it last renewed its lease, or started.
    pub seen_at: Timestamp,
    /// Whether its lease holds. Servers without leases count as reachable.
    pub is_reachable: bool,
    pub sandboxes: SandboxCount,
}

/// How many live sandboxes a server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxCount {
    pub running: u32,
    pub paused: u32,
}

impl Store {
    /// Records the name of this server.
    pub(super) async fn register_server(&self, name: &str) -> Result<(), StoreError> {
        query(
            "INSERT INTO servers (id, name, seen_at) VALUES (?, ?, ?) \
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, seen_at = excluded.seen_at",
        )
        .bind(self.server())
        .bind(name)
        .bind(Timestamp::now().0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record this server"))?;
        Ok(())
    }

    /// Lets this server's lease hold for this long from now on, by the database's clock. Does nothing with a database
    /// that only one server can use.
    pub async fn renew_lease(&self, lease: Duration, version: &str) -> Result<(), StoreError> {
        if !self.is_shared() {
            return Ok(());
        }
        let text = format!(
            "UPDATE servers SET lease_until = {POSTGRES_NOW} + ?, seen_at = {POSTGRES_NOW}, version = ? WHERE id = ?"
        );
        query(AssertSqlSafe(text))
            .bind(millis(lease))
            .bind(version)
            .bind(self.server())
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("renew the lease of this server"))?;
        Ok(())
    }

    /// The error for something that belongs to another server, which may be unreachable.
    pub async fn on_other_server(&self, server: &str) -> StoreError {
        let text =
            format!("SELECT name, lease_until IS NULL OR lease_until >= {POSTGRES_NOW} FROM servers WHERE id = ?");
        let found = query(AssertSqlSafe(text)).bind(server).fetch_optional(&self.read).await;
        match found.map_err(StoreError::doing("read a server's lease")) {
            Err(error) => error,
            Ok(None) => StoreError::Elsewhere { id: server.to_owned(), server: server.to_owned() },
            Ok(Some(row)) if row.get(1) => StoreError::Elsewhere { id: server.to_owned(), server: row.get(0) },
            Ok(Some(row)) => StoreError::Unreachable { server: row.get(0) },
        }
    }

    /// All servers that have ever used this database, in the order of their names. Empty for a database that only one
    /// server can use.
    pub async fn list_servers(&self) -> Result<Vec<ServerRow>, StoreError> {
        if !self.is_shared() {
            return Ok(Vec::new());
        }
        let text = format!(
            "SELECT s.id, s.name, s.version, s.seen_at, s.lease_until IS NULL OR s.lease_until >= {POSTGRES_NOW}, \
             count(b.id) FILTER (WHERE b.state <> 'paused'), count(b.id) FILTER (WHERE b.state = 'paused') \
             FROM servers s LEFT JOIN sandboxes b ON b.server = s.id AND b.state <> 'ended' \
             GROUP BY s.id ORDER BY s.name, s.id"
        );
        let rows =
            query(AssertSqlSafe(text)).fetch_all(&self.read).await.map_err(StoreError::doing("list the servers"))?;
        Ok(rows.iter().map(read_server).collect())
    }

    /// How many live sandboxes this server has.
    pub async fn count_own_sandboxes(&self) -> Result<SandboxCount, StoreError> {
        let text = "SELECT count(*) FILTER (WHERE state <> 'paused'), count(*) FILTER (WHERE state = 'paused') \
                    FROM sandboxes WHERE server = ? AND state <> 'ended'";
        let row = query(text)
            .bind(self.server())
            .fetch_one(&self.read)
            .await
            .map_err(StoreError::doing("count the sandboxes of this server"))?;
        Ok(SandboxCount { running: row.get(0), paused: row.get(1) })
    }
}

fn read_server(row: &Row) -> ServerRow {
    ServerRow {
        id: row.get(0),
        name: row.get(1),
        version: row.get(2),
        seen_at: Timestamp(row.get(3)),
        is_reachable: row.get(4),
        sandboxes: SandboxCount { running: row.get(5), paused: row.get(6) },
    }
}
