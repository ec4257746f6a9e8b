//! Which server owns what, if several servers share a database. Each server reads all records but acts only on its own.

use isopod_wire::SandboxId;

use super::{Store, StoreError, TeamId};
use crate::RunId;
use crate::database::query;

/// Something that belongs to one server.
#[derive(Clone, Copy, Debug)]
pub enum Resource<'a> {
    /// A sandbox that has not ended. If a team is given, it must be the team's.
    Sandbox(&'a SandboxId, Option<&'a TeamId>),
    /// A run that has not ended.
    Run(&'a RunId),
    /// The result of a build.
    Build(&'a str),
    /// The artifacts of a run of this team.
    Artifacts(&'a TeamId, &'a str),
}

impl Store {
    /// Returns an error with the server's name if another server owns the resource. A resource without an owner is not
    /// an error here.
    pub async fn check_here(&self, resource: Resource<'_>) -> Result<(), StoreError> {
        if !self.is_shared() {
            return Ok(());
        }
        let found = match resource {
            Resource::Sandbox(id, team) => {
                query("SELECT server FROM sandboxes WHERE id = ? AND state <> 'ended' AND coalesce(?, team) = team")
                    .bind(id.as_str())
                    .bind(team.map(|team| team.0.as_str()))
            }
            Resource::Run(id) => query("SELECT server FROM runs WHERE id = ? AND ended_at IS NULL").bind(id.as_str()),
            Resource::Build(id) => query("SELECT server FROM template_builds WHERE id = ?").bind(id),
            Resource::Artifacts(team, run) => {
                query("SELECT server FROM artifacts WHERE team = ? AND run = ? AND server <> ? LIMIT 1")
                    .bind(&team.0)
                    .bind(run)
                    .bind(self.server())
            }
        };
        let row = found.fetch_optional(&self.read).await.map_err(StoreError::doing("look up a server"))?;
        match row {
            Some(row) => self.check_server(row.get(0)).await,
            None => Ok(()),
        }
    }

    /// Whether a live sandbox of the team on another server may have this value in its metadata. False positives are
    /// acceptable, because the caller removes files.
    pub async fn is_in_metadata_elsewhere(&self, team: &TeamId, key: &str, value: &str) -> Result<bool, StoreError> {
        if !self.is_shared() {
            return Ok(false);
        }
        let pattern = format!("%\"{key}\":\"{value}\"%");
        let text =
            "SELECT id FROM sandboxes WHERE state <> 'ended' AND server <> ? AND team = ? AND metadata LIKE ? LIMIT 1";
        let row = query(text)
            .bind(self.server())
            .bind(&team.0)
            .bind(pattern)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("look for sandboxes of other servers"))?;
        Ok(row.is_some())
    }

    /// Returns an error if the row belongs to another server.
    pub(super) async fn check_server(&self, server: &str) -> Result<(), StoreError> {
        if server == self.server() {
            return Ok(());
        }
        Err(self.on_other_server(server).await)
    }
}
