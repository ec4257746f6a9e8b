//! Checkpoints of an owner's sandbox: what was done there since can be undone.

use std::collections::HashSet;
use std::sync::Arc;

use isopod_control::lifecycle::{RolledBack, Sandbox, SnapshotError};
use isopod_store::{Owner, TeamId, TeamOwner};
use sha2::{Digest as _, Sha256};

use super::workspace::present_inside;
use super::{SessionError, Sessions};

/// The name of a checkpoint among those of its owner.
#[derive(Clone, Debug)]
pub(crate) enum CheckpointName {
    /// Chosen by a client.
    Client(String),
    /// Of a node of a workflow.
    Node(String),
}

impl Sessions {
    /// Keeps what the owner's sandbox has and does, in the place of what it kept under this name. Creates the sandbox if there
    /// is none. Done as a whole, also for a caller that has gone away.
    pub(crate) async fn take_checkpoint(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        name: CheckpointName,
    ) -> Result<(), SessionError> {
        let (sessions, team, owner) = (Arc::clone(self), team.clone(), owner.clone());
        let taking = tokio::spawn(async move { sessions.take_now(&team, &owner, &name).await });
        taking.await.unwrap_or(Err(SessionError::Aborted))
    }

    /// Puts the owner's sandbox back to a checkpoint. If the sandbox is lost, a new one goes on from there. Returns false if there
    /// is none of this name.
    pub(crate) async fn roll_back(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        name: CheckpointName,
    ) -> Result<bool, SessionError> {
        let (sessions, team, owner) = (Arc::clone(self), team.clone(), owner.clone());
        let going_back = tokio::spawn(async move { sessions.roll_back_now(&team, &owner, &name.of(&owner)).await });
        going_back.await.unwrap_or(Err(SessionError::Aborted))
    }

    /// Removes the owner's checkpoints. Idempotent.
    pub(super) async fn remove_checkpoints(&self, team: &TeamId, owner: &Owner) -> Result<(), SessionError> {
        Ok(self.fleet.remove_checkpoints(team, &prefix(owner), None).await?)
    }

    async fn take_now(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        name: &CheckpointName,
    ) -> Result<(), SessionError> {
        let (sandbox, full_name) = (self.sandbox_for_checkpoint(team, owner, None).await?, name.of(owner));
        let known = self.known_of(sandbox.id()).await?;
        let mut known = known.lock().await;
        self.fleet.take_checkpoint(sandbox, &full_name).await.map_err(failed(owner))?;
        if let CheckpointName::Node(_) = name {
            // Nodes with checkpoints run one after the other, so those before it are done.
            self.fleet.remove_checkpoints(team, &name.beginning(owner), Some(&full_name)).await?;
            known.forget_checkpoints(&name.beginning(owner));
        }
        known.keep_at(&full_name);
        Ok(())
    }

    async fn roll_back_now(self: &Arc<Self>, team: &TeamId, owner: &Owner, name: &str) -> Result<bool, SessionError> {
        if !self.fleet.has_checkpoint(team, name).await? {
            return Ok(false);
        }
        let sandbox = self.sandbox_for_checkpoint(team, owner, None).await?;
        match self.fleet.roll_back_to(&sandbox, name).await.map_err(failed(owner))? {
            RolledBack::NoCheckpoint => Ok(false),
            RolledBack::Done => {
                self.go_back(team, owner, &sandbox, name).await?;
                Ok(true)
            }
            RolledBack::OfAnother { template } => {
                // The one that it was taken of is gone, and this one has nothing of it.
                let use_error = |source| SessionError::Use { owner: owner.clone(), source };
                sandbox.kill().await.map_err(use_error)?;
                let restored = self.sandbox_for_checkpoint(team, owner, Some(template.clone())).await?;
                // Somebody else may have been faster, and has an empty one.
                let is_restored = restored.view().row.template == template;
                if is_restored { Ok(true) } else { Err(SessionError::Disposed(owner.clone())) }
            }
        }
    }

    /// Which inputs the sandbox has after a rollback.
    async fn go_back(&self, team: &TeamId, owner: &Owner, sandbox: &Sandbox, name: &str) -> Result<(), SessionError> {
        let known = self.known_of(sandbox.id()).await?;
        let mut known = known.lock().await;
        let gone = match known.go_back_to(name) {
            Some(gone) => gone,
            // This server has been started since. The others are as they were at the checkpoint.
            None => {
                let inside = self.inside(owner, sandbox)?;
                let there: HashSet<String> =
                    present_inside(&inside.guest, &known.input_paths(), self.settings.caps).await?;
                known.forget_inputs(|path| !there.contains(path))
            }
        };
        self.save_known(sandbox.id(), &mut known).await;
        if self.map.wants_hashes() {
            let gone: Vec<_> = gone.into_iter().map(|path| (path, None)).collect();
            self.map.put_hashes(&TeamOwner::new(team, owner), &gone, None).await;
        }
        Ok(())
    }

    /// `from` is what a new one starts from, if there is none.
    async fn sandbox_for_checkpoint(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        from: Option<String>,
    ) -> Result<Arc<Sandbox>, SessionError> {
        let duration = self.settings.timeout.min(self.fleet.max_lifetime());
        Ok(self.get_or_create_from(team, owner, duration, from).await?.sandbox)
    }
}

fn failed(owner: &Owner) -> impl Fn(SnapshotError) -> SessionError + '_ {
    move |source| SessionError::Checkpoint { owner: owner.clone(), source }
}

impl CheckpointName {
    /// Names of snapshots allow fewer characters than those of nodes, and none may be the beginning of another.
    fn of(&self, owner: &Owner) -> String {
        let (Self::Client(name) | Self::Node(name)) = self;
        format!("{}{}", self.beginning(owner), short_hash(name))
    }

    /// How the names of all checkpoints of this kind begin.
    fn beginning(&self, owner: &Owner) -> String {
        let kind = match self {
            Self::Client(_) => "client",
            Self::Node(_) => "node",
        };
        format!("{}{kind}-", prefix(owner))
    }
}

fn prefix(owner: &Owner) -> String {
    format!("{}{}-", isopod_control::lifecycle::CHECKPOINT_PREFIX, short_hash(&owner.to_string()))
}

fn short_hash(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..10])
}
