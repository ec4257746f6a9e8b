//! Checkpoints of an owner's sandbox: what was done there since can be undone.

use std::sync::Arc;

use isopod_store::{Owner, TeamId, TeamOwner};
use sha2::{Digest as _, Sha256};

use super::lease::Lease;
use super::{SessionError, Sessions};

/// The name of a checkpoint among those of its owner.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckpointName<'a> {
    /// Chosen by a client.
    Client(&'a str),
    /// Of a node of a workflow.
    Node(&'a str),
}

impl Sessions {
    /// Keeps what the owner's sandbox has and does, in the place of what it kept under this name. Creates the sandbox if there
    /// is none.
    pub(crate) async fn take_checkpoint(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        name: CheckpointName<'_>,
    ) -> Result<(), SessionError> {
        let (sandbox, full_name) = (self.lease_for_checkpoint(team, owner).await?.sandbox, name.of(owner));
        let known = self.known_of(sandbox.id()).await?;
        let mut known = known.lock().await;
        let taken = self.fleet.take_checkpoint(sandbox, &full_name).await;
        taken.map_err(|source| SessionError::Checkpoint { owner: owner.clone(), source })?;
        known.keep_at(&full_name);
        if let CheckpointName::Node(_) = name {
            // Nodes with checkpoints run one after the other, so those before it are done.
            self.fleet.remove_checkpoints(team, &name.beginning(owner), Some(&full_name)).await?;
        }
        Ok(())
    }

    /// Puts the owner's sandbox back to a checkpoint. Returns false if it has none of this name.
    pub(crate) async fn roll_back(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        name: CheckpointName<'_>,
    ) -> Result<bool, SessionError> {
        let (sandbox, name) = (self.lease_for_checkpoint(team, owner).await?.sandbox, name.of(owner));
        let known = self.known_of(sandbox.id()).await?;
        let mut known = known.lock().await;
        let done = self.fleet.roll_back_to(&sandbox, &name).await;
        if !done.map_err(|source| SessionError::Checkpoint { owner: owner.clone(), source })? {
            return Ok(false);
        }
        let gone: Vec<_> = known.go_back_to(&name).into_iter().map(|path| (path, None)).collect();
        self.save_known(sandbox.id(), &mut known).await;
        if self.map.wants_hashes() {
            self.map.put_hashes(&TeamOwner::new(team, owner), &gone, None).await;
        }
        Ok(true)
    }

    /// Removes the owner's checkpoints. Idempotent.
    pub(super) async fn remove_checkpoints(&self, team: &TeamId, owner: &Owner) -> Result<(), SessionError> {
        Ok(self.fleet.remove_checkpoints(team, &prefix(owner), None).await?)
    }

    async fn lease_for_checkpoint(self: &Arc<Self>, team: &TeamId, owner: &Owner) -> Result<Lease, SessionError> {
        self.get_or_create(team, owner, self.settings.timeout.min(self.fleet.max_lifetime())).await
    }
}

impl CheckpointName<'_> {
    /// Names of snapshots allow fewer characters than those of nodes, and none may be the beginning of another.
    fn of(self, owner: &Owner) -> String {
        let (Self::Client(name) | Self::Node(name)) = self;
        format!("{}{}", self.beginning(owner), short_hash(name))
    }

    /// How the names of all checkpoints of this kind begin.
    fn beginning(self, owner: &Owner) -> String {
        let kind = match self {
            Self::Client(_) => "client",
            Self::Node(_) => "node",
        };
        format!("{}{kind}-", prefix(owner))
    }
}

fn prefix(owner: &Owner) -> String {
    format!("checkpoint-{}-", short_hash(&owner.to_string()))
}

fn short_hash(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..10])
}
