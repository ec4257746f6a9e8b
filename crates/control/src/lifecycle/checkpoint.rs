//! Snapshots that the server itself takes, under names that it chooses, and puts sandboxes back to.

use std::sync::Arc;

use isopod_store::{BuildStatus, SnapshotSource, StoreError, TeamId, TemplateKind};

use super::fleet::Fleet;
use super::handle::Sandbox;
use super::snapshot::{SnapshotError, WantedSnapshot};
use crate::templates::DEFAULT_TAG;

/// How the names of such snapshots begin. Clients cannot choose them.
pub const CHECKPOINT_PREFIX: &str = "isopod-run-";

/// What [`Fleet::roll_back_to`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolledBack {
    /// The sandbox is as it was.
    Done,
    /// There is no checkpoint of this name. Nothing was done.
    NoCheckpoint,
    /// It was taken of another sandbox, and nothing was done. A new sandbox can be created from it, as from this template.
    OfAnother { template: String },
}

impl Fleet {
    /// Takes a checkpoint, in the place of one of the same name.
    ///
    /// # Errors
    /// If it is not possible now. The sandbox goes on.
    pub async fn take_checkpoint(self: &Arc<Self>, sandbox: Arc<Sandbox>, name: &str) -> Result<(), SnapshotError> {
        let wanted = WantedSnapshot { name: Some(name.to_owned()), tag: DEFAULT_TAG.to_owned(), with_memory: true };
        let taken = self.take_snapshot(sandbox, wanted).await?;
        let all = self.store.list_builds(&taken.template.id).await?;
        for earlier in all.iter().filter(|build| build.id != taken.build.id) {
            self.store.abandon_snapshot(earlier).await?;
        }
        self.remove_unrecorded_snapshots().await?;
        Ok(())
    }

    /// Whether the team has a checkpoint of this name.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn has_checkpoint(&self, team: &TeamId, name: &str) -> Result<bool, StoreError> {
        Ok(self.checkpoint_named(team, name).await?.is_some())
    }

    /// Puts a sandbox back to the checkpoint of this name.
    ///
    /// # Errors
    /// If it is not possible now.
    pub async fn roll_back_to(&self, sandbox: &Sandbox, name: &str) -> Result<RolledBack, SnapshotError> {
        let Some((template, source)) = self.checkpoint_named(sandbox.team(), name).await? else {
            return Ok(RolledBack::NoCheckpoint);
        };
        self.check_saves_memory().await?;
        if source.sandbox != *sandbox.id() {
            return Ok(RolledBack::OfAnother { template });
        }
        sandbox.rollback(source).await?;
        Ok(RolledBack::Done)
    }

    /// Removes all checkpoints whose names begin like this, except for one. Does nothing if there are none.
    ///
    /// # Errors
    /// If the store fails. They may still exist then.
    pub async fn remove_checkpoints(&self, team: &TeamId, names: &str, kept: Option<&str>) -> Result<(), StoreError> {
        let mut found = self.store.snapshots_named(team, names).await?;
        found.retain(|(_, name)| Some(name.as_str()) != kept);
        for (template, _) in &found {
            self.store.remove_template(template).await?;
        }
        if !found.is_empty() {
            self.remove_unrecorded_snapshots().await?;
        }
        Ok(())
    }

    /// The id of its template, and the snapshot.
    async fn checkpoint_named(
        &self,
        team: &TeamId,
        name: &str,
    ) -> Result<Option<(String, SnapshotSource)>, StoreError> {
        let found = self.store.visible_template(team, name).await?;
        let is_own = |kind, of: &TeamId| kind == TemplateKind::Snapshot && of == team;
        let Some(template) = found.filter(|template| is_own(template.kind, &template.team)) else { return Ok(None) };
        let build = self.store.tagged_build(&template.id, DEFAULT_TAG).await?;
        let ready = build.filter(|build| build.status == BuildStatus::Ready).and_then(|build| build.snapshot);
        Ok(ready.map(|source| (template.id, source)))
    }
}
