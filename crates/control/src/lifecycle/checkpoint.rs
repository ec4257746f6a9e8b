//! Snapshots that the server itself takes, under names that it chooses, and puts sandboxes back to.

use std::sync::Arc;

use isopod_store::{BuildStatus, SnapshotSource, StoreError, TeamId, TemplateKind};

use super::fleet::Fleet;
use super::handle::Sandbox;
use super::snapshot::{SnapshotError, WantedSnapshot};
use crate::templates::DEFAULT_TAG;

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

    /// Puts a sandbox back to its checkpoint of this name. Returns false if there is none.
    ///
    /// # Errors
    /// If it is not possible now.
    pub async fn roll_back_to(&self, sandbox: &Sandbox, name: &str) -> Result<bool, SnapshotError> {
        let Some(source) = self.checkpoint_of(sandbox, name).await? else { return Ok(false) };
        self.check_saves_memory().await?;
        sandbox.rollback(source).await?;
        Ok(true)
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

    /// `None` also for a checkpoint of an earlier sandbox, to which this one cannot be put back.
    async fn checkpoint_of(&self, sandbox: &Sandbox, name: &str) -> Result<Option<SnapshotSource>, StoreError> {
        let found = self.store.visible_template(sandbox.team(), name).await?;
        let is_own = |kind, team: &TeamId| kind == TemplateKind::Snapshot && team == sandbox.team();
        let Some(template) = found.filter(|template| is_own(template.kind, &template.team)) else { return Ok(None) };
        let build = self.store.tagged_build(&template.id, DEFAULT_TAG).await?;
        let ready = build.filter(|build| build.status == BuildStatus::Ready).and_then(|build| build.snapshot);
        Ok(ready.filter(|source| source.sandbox == *sandbox.id()))
    }
}
