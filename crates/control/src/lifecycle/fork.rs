//! Forks a running sandbox: one snapshot that nobody else sees, and a create for each copy, all at once.
//!
//! A copy has an id, tokens and a timeout of its own. Everything else is the source's: metadata, network, lifecycle,
//! environment, template, limits and mounts. Only the session key is not, because a session has one sandbox.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use isopod_store::SandboxRow;
use isopod_wire::SnapshotId;
use isopod_wire::node::SandboxSpec;

use super::create::{CreateRefusal, NewSandbox};
use super::fleet::Fleet;
use super::handle::{ActError, Sandbox};
use super::rules::Refusal;
use super::session::SESSION_KEY;
use crate::templates::UsableTemplate;

/// A copy, or why there is none.
pub(crate) type Copy = Result<Arc<Sandbox>, CreateRefusal>;

impl Fleet {
    /// Creates copies of a running sandbox, which goes on. An error means that none was attempted.
    pub(crate) async fn fork(
        self: &Arc<Self>,
        source: &Sandbox,
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<Copy>, ActError> {
        self.check_admits()?;
        self.check_saves_memory().await?;
        // Only the node has the environment that the sandbox was created with.
        let on_node = self.node.list().await.into_iter().find(|found| found.incarnation.sandbox == *source.id());
        let spec = on_node.ok_or(ActError::Refused(Refusal::NotFound))?.spec;
        let temporary = self.mark_temporary();
        let copies = match source.snapshot(temporary.id.clone(), true).await {
            Ok(_) => {
                let wanted = copy_of(&source.view().row, spec, &temporary.id, timeout);
                Ok(join_all((0..count).map(|_| self.create(wanted.clone()))).await)
            }
            Err(error) => Err(error),
        };
        self.discard_snapshot(&temporary.id).await;
        copies
    }
}

fn copy_of(row: &SandboxRow, spec: SandboxSpec, snapshot: &SnapshotId, timeout: Duration) -> NewSandbox {
    let mut metadata = row.metadata.clone();
    metadata.remove(SESSION_KEY);
    NewSandbox {
        team: row.team.clone(),
        template: UsableTemplate::of_copy(row, spec.template, snapshot.clone()),
        timeout,
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
