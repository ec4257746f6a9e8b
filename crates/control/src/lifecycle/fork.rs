//! Forks a running sandbox: one snapshot that nobody else sees, and a create for each copy, all at once.
//!
//! A copy has an id, tokens and a timeout of its own. Everything else is the source's: metadata, network, lifecycle,
//! environment, template, limits and mounts. Only the session key is not, because a session has one sandbox. Copies
//! without memory start like a new sandbox, from the source's files.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use isopod_store::SandboxRow;
use isopod_wire::SnapshotId;
use isopod_wire::node::{SandboxSpec, SnapshotKind};

use super::create::{CreateRefusal, NewSandbox};
use super::fleet::Fleet;
use super::handle::{ActError, Sandbox};
use super::rules::Refusal;
use super::session::SESSION_KEY;
use crate::templates::UsableTemplate;

/// A copy, or why there is none.
pub(crate) type Copy = Result<Arc<Sandbox>, CreateRefusal>;

/// What a client wants to have copied.
#[derive(Clone, Debug)]
pub(crate) struct WantedCopies {
    pub(crate) count: usize,
    /// Of each copy.
    pub(crate) timeout: Duration,
    pub(crate) with_memory: bool,
}

impl Fleet {
    /// Creates copies of a running sandbox, which goes on. An error means that none was attempted.
    pub(crate) async fn fork(self: &Arc<Self>, source: &Sandbox, wanted: &WantedCopies) -> Result<Vec<Copy>, ActError> {
        self.check_admits()?;
        if wanted.with_memory {
            self.check_saves_memory().await?;
        }
        // Only the node has the environment that the sandbox was created with.
        let on_node = self.node.list().await.into_iter().find(|found| found.incarnation.sandbox == *source.id());
        let spec = on_node.ok_or(ActError::Refused(Refusal::NotFound))?.spec;
        let temporary = self.mark_temporary();
        // One of files has the guest write them out, as any other does.
        let kind = if wanted.with_memory { SnapshotKind::Temporary } else { SnapshotKind::Files };
        let copies = match source.snapshot(temporary.id.clone(), kind).await {
            Ok(_) => {
                let copy = copy_of(&source.view().row, spec, &temporary.id, wanted);
                Ok(join_all((0..wanted.count).map(|_| self.create(copy.clone()))).await)
            }
            Err(error) => Err(error),
        };
        temporary.remove_later();
        copies
    }
}

fn copy_of(row: &SandboxRow, spec: SandboxSpec, snapshot: &SnapshotId, wanted: &WantedCopies) -> NewSandbox {
    let mut metadata = row.metadata.clone();
    metadata.remove(SESSION_KEY);
    NewSandbox {
        team: row.team.clone(),
        template: UsableTemplate::of_copy(row, spec.template, snapshot.clone(), wanted.with_memory),
        timeout: wanted.timeout,
        auto_pause: row.auto_pause,
        auto_pause_memory: row.auto_pause_memory,
        auto_resume: row.auto_resume,
        secure: row.access_token.is_some(),
        allow_internet: row.allow_internet,
        network: row.network.clone(),
        metadata,
        env: spec.env,
        session_key: None,
        idempotency_key: None,
        mounts: spec.mounts,
        volume_mounts: row.volume_mounts.clone(),
    }
}
