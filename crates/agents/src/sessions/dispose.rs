//! Ends a session. The session ends only when its sandbox is certainly removed. A failed cleanup stays recorded in the
//! store, and the sweep tries again.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::{ActError, Refusal, Sandbox};
use isopod_store::{Owner, SessionRow, TeamId};

use super::lease::Lessee;
use super::{SessionError, Sessions};

/// The result of a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disposed {
    /// A sandbox existed, and it is now gone.
    pub(crate) killed: bool,
}

impl Sessions {
    /// Removes the owner's sandbox. Idempotent.
    pub(crate) async fn dispose(self: &Arc<Self>, team: &TeamId, owner: &Owner) -> Result<Disposed, SessionError> {
        let duration = Duration::ZERO;
        let lessee = Lessee { sessions: Arc::clone(self), team: team.clone(), owner: owner.clone(), duration };
        let killed = self.fleet.leases.end(lessee).await?;
        Ok(Disposed { killed })
    }

    /// Returns true if there was a sandbox.
    pub(super) async fn dispose_alone(&self, team: &TeamId, owner: &Owner) -> Result<bool, SessionError> {
        let Some(row) = self.store.find_session_of(team, owner).await? else { return Ok(false) };
        self.store.begin_ending_session(row.id).await?;
        self.finish_disposal(&row).await
    }

    /// Removes the sandbox of a session that is being ended, and ends the session.
    pub(super) async fn finish_disposal(&self, row: &SessionRow) -> Result<bool, SessionError> {
        let mut killed = false;
        for sandbox in self.sandboxes_of(row).await? {
            match sandbox.kill().await {
                Ok(()) => killed = true,
                Err(ActError::Refused(Refusal::NotFound)) => {}
                Err(source) => return Err(SessionError::Kill { owner: row.owner.clone(), source }),
            }
        }
        if let Some(sandbox) = &row.sandbox {
            self.forget_files(&row.team, &row.owner, sandbox).await;
        }
        self.store.end_session(row).await?;
        self.unmirror(&row.team, &row.owner, row.sandbox.as_ref()).await;
        tracing::info!(owner = %row.owner, killed, "a session has ended");
        Ok(killed)
    }

    /// The recorded sandbox, and one that was created but could not be recorded.
    async fn sandboxes_of(&self, row: &SessionRow) -> Result<Vec<Arc<Sandbox>>, SessionError> {
        let recorded = row.sandbox.as_ref().and_then(|id| self.fleet.find_of(&row.team, id));
        let by_key = self.store.find_session(&row.team, &row.owner.session_key()).await?;
        let by_key = by_key.and_then(|found| self.fleet.find_of(&row.team, &found.id));
        let by_key = by_key.filter(|found| recorded.as_ref().is_none_or(|recorded| recorded.id() != found.id()));
        Ok(recorded.into_iter().chain(by_key).collect())
    }
}
