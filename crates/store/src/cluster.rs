//! The cluster: servers on one PostgreSQL that forward requests to each other. Its authority, its nodes and the tokens by
//! which machines join. Times are those of the database.

use std::time::Duration;

use isopod_wire::SandboxId;
use sqlx::AssertSqlSafe;

use super::{Store, StoreError};
use crate::clock::{Timestamp, millis};
use crate::database::{POSTGRES_NOW, Row, query};
use crate::secrets::KeyHash;

/// A server that is or was a node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// The id of the server.
    pub server: String,
    pub name: String,
    pub version: String,
    /// `host:port` where it listens for the other nodes. Empty until it first runs.
    pub address: String,
    /// The SHA-256 of its public key.
    pub key_hash: Vec<u8>,
    pub certificate_until: Timestamp,
    /// Whether its lease holds.
    pub is_reachable: bool,
    /// Whether an operator has removed it.
    pub is_removed: bool,
}

/// A token by which a machine can join, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterToken {
    pub id: String,
    pub expires_at: Timestamp,
    pub is_expired: bool,
    /// The id of the server that has used it.
    pub used_by: Option<String>,
}

/// What became of a request to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    Joined,
    /// The token doesn't exist, was used, was revoked, or has expired.
    InvalidToken,
    /// A node with this id and another key is in the cluster. It must be removed first.
    IdTaken,
}

/// A server that asks to join.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    pub server: &'a str,
    pub key_hash: &'a KeyHash,
    pub certificate_until: Timestamp,
}

const NODE_COLUMNS: &str = "n.server, coalesce(s.name, n.server), coalesce(s.version, ''), n.address, n.key_hash, \
     n.certificate_until, n.removed_at IS NOT NULL";

impl Store {
    /// Records the fingerprint of the cluster's authority. Returns false if the database has a cluster.
    pub async fn init_cluster(&self, authority: &str) -> Result<bool, StoreError> {
        let text = format!(
            "INSERT INTO cluster (id, authority, created_at) VALUES (1, ?, {POSTGRES_NOW}) ON CONFLICT DO NOTHING"
        );
        let made = query(AssertSqlSafe(text)).bind(authority).execute(&self.write).await;
        Ok(made.map_err(StoreError::doing("record the cluster"))?.rows_affected() == 1)
    }

    /// The fingerprint of the authority, if the database has a cluster.
    pub async fn cluster_authority(&self) -> Result<Option<String>, StoreError> {
        let row = query("SELECT authority FROM cluster").fetch_optional(&self.read).await;
        Ok(row.map_err(StoreError::doing("read the cluster"))?.map(|row| row.get(0)))
    }

    pub async fn add_cluster_token(&self, id: &str, hash: &KeyHash, lasts: Duration) -> Result<(), StoreError> {
        let text = format!(
            "INSERT INTO cluster_tokens (id, hash, created_at, expires_at) VALUES (?, ?, {POSTGRES_NOW}, {POSTGRES_NOW} + ?)"
        );
        let added = query(AssertSqlSafe(text)).bind(id).bind(hash.as_slice()).bind(millis(lasts));
        added.execute(&self.write).await.map_err(StoreError::doing("record a join token"))?;
        Ok(())
    }

    /// The tokens of the last week and those that are still valid, the newest first.
    pub async fn list_cluster_tokens(&self) -> Result<Vec<ClusterToken>, StoreError> {
        let text = format!(
            "SELECT id, expires_at, expires_at <= {POSTGRES_NOW}, used_by FROM cluster_tokens \
             WHERE expires_at > {POSTGRES_NOW} - 604800000 ORDER BY created_at DESC, id"
        );
        let rows = query(AssertSqlSafe(text)).fetch_all(&self.read).await;
        let read = |row: &Row| ClusterToken {
            id: row.get(0),
            expires_at: Timestamp(row.get(1)),
            is_expired: row.get(2),
            used_by: row.get(3),
        };
        Ok(rows.map_err(StoreError::doing("list join tokens"))?.iter().map(read).collect())
    }

    /// Returns false if there is no such token that could still be used.
    pub async fn revoke_cluster_token(&self, id: &str) -> Result<bool, StoreError> {
        let done = query("DELETE FROM cluster_tokens WHERE id = ? AND used_by IS NULL").bind(id).execute(&self.write);
        Ok(done.await.map_err(StoreError::doing("revoke a join token"))?.rows_affected() == 1)
    }

    /// Records a node that needs no token, because it makes the cluster.
    pub async fn add_first_cluster_node(&self, joining: &Joining<'_>) -> Result<(), StoreError> {
        insert_node(joining).execute(&self.write).await.map_err(StoreError::doing("record the first node"))?;
        Ok(())
    }

    /// Uses up the token and records the node.
    pub async fn join_cluster(&self, token: &KeyHash, joining: &Joining<'_>) -> Result<JoinOutcome, StoreError> {
        let failed = StoreError::doing("let a node join");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        let text = format!(
            "UPDATE cluster_tokens SET used_by = ? WHERE hash = ? AND used_by IS NULL AND expires_at > {POSTGRES_NOW}"
        );
        let used = query(AssertSqlSafe(text)).bind(joining.server).bind(token.as_slice());
        if used.execute(&mut transaction).await.map_err(&failed)?.rows_affected() == 0 {
            return Ok(JoinOutcome::InvalidToken);
        }
        if insert_node(joining).execute(&mut transaction).await.map_err(&failed)?.rows_affected() == 0 {
            return Ok(JoinOutcome::IdTaken);
        }
        transaction.commit().await.map_err(&failed)?;
        Ok(JoinOutcome::Joined)
    }

    /// Records where this node listens and how long its certificate lasts. Returns false if it isn't a node with this key.
    pub async fn announce_cluster_node(
        &self,
        address: &str,
        key_hash: &KeyHash,
        until: Timestamp,
    ) -> Result<bool, StoreError> {
        let done = query(
            "UPDATE cluster_nodes SET address = ?, certificate_until = ? \
             WHERE server = ? AND key_hash = ? AND removed_at IS NULL",
        )
        .bind(address)
        .bind(until.0)
        .bind(self.server())
        .bind(key_hash.as_slice())
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record the address of this node"))?;
        Ok(done.rows_affected() == 1)
    }

    /// All nodes, also those that were removed, in the order of their names.
    pub async fn list_cluster_nodes(&self) -> Result<Vec<ClusterNode>, StoreError> {
        let text = format!(
            "SELECT {NODE_COLUMNS}, coalesce(s.lease_until >= {POSTGRES_NOW}, false) FROM cluster_nodes n \
             LEFT JOIN servers s ON s.id = n.server ORDER BY 2, 1"
        );
        let rows = query(AssertSqlSafe(text)).fetch_all(&self.read).await;
        Ok(rows.map_err(StoreError::doing("list the nodes of the cluster"))?.iter().map(read_node).collect())
    }

    /// Removes a node by its id. Returns false if there is no such node.
    pub async fn remove_cluster_node(&self, server: &str) -> Result<bool, StoreError> {
        let text =
            format!("UPDATE cluster_nodes SET removed_at = {POSTGRES_NOW} WHERE server = ? AND removed_at IS NULL");
        let done = query(AssertSqlSafe(text)).bind(server).execute(&self.write);
        Ok(done.await.map_err(StoreError::doing("remove a node"))?.rows_affected() == 1)
    }

    /// The id of the server that has this live sandbox.
    pub async fn server_of_sandbox(&self, id: &SandboxId) -> Result<Option<String>, StoreError> {
        self.server_of("SELECT server FROM sandboxes WHERE id = ? AND state <> 'ended'", id.as_str()).await
    }

    /// The id of the server that has this live sandbox of the service.
    pub async fn server_of_service_sandbox(&self, id: &str) -> Result<Option<String>, StoreError> {
        self.server_of("SELECT server FROM service_sandboxes WHERE id = ? AND destroyed_at IS NULL", id).await
    }

    /// The id of the server that has, or makes, the result of this build.
    pub async fn server_of_build(&self, id: &str) -> Result<Option<String>, StoreError> {
        self.server_of("SELECT server FROM template_builds WHERE id = ?", id).await
    }

    async fn server_of(&self, text: &'static str, id: &str) -> Result<Option<String>, StoreError> {
        let row =
            query(text).bind(id).fetch_optional(&self.read).await.map_err(StoreError::doing("look up a server"))?;
        Ok(row.map(|row| row.get(0)))
    }
}

/// Inserts nothing if the id belongs to a node with another key.
fn insert_node<'a>(joining: &'a Joining<'a>) -> crate::database::Query<'a> {
    let text = format!(
        "INSERT INTO cluster_nodes (server, address, key_hash, certificate_until, joined_at) \
         VALUES (?, '', ?, ?, {POSTGRES_NOW}) ON CONFLICT (server) DO UPDATE \
         SET key_hash = excluded.key_hash, certificate_until = excluded.certificate_until, \
             joined_at = excluded.joined_at, removed_at = NULL \
         WHERE cluster_nodes.removed_at IS NOT NULL OR cluster_nodes.key_hash = excluded.key_hash"
    );
    query(AssertSqlSafe(text)).bind(joining.server).bind(joining.key_hash.as_slice()).bind(joining.certificate_until.0)
}

fn read_node(row: &Row) -> ClusterNode {
    ClusterNode {
        server: row.get(0),
        name: row.get(1),
        version: row.get(2),
        address: row.get(3),
        key_hash: row.get(4),
        certificate_until: Timestamp(row.get(5)),
        is_removed: row.get(6),
        is_reachable: row.get(7),
    }
}
