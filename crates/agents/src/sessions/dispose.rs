//! Ends a session. The session ends only when its sandbox is certainly removed. A failed cleanup stays recorded in the
//! store, and the sweep tries again.
//!
//! The owner's sandboxes are those that [`Sessions::execute`] would use, wherever they are known: in the row, under the
//! session key, or in the map, where other code may have noted one. While the map doesn't answer, a session ends only if
//! the sandbox of its row was there to remove: nobody notes another one while that one lives. All others stay in the
//! store until the map has been asked.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::{ActError, Refusal, Sandbox};
use isopod_store::{Owner, Resource, SessionRow, State, StoreError, TeamId, TeamOwner};
use isopod_wire::SandboxId;

use super::lease::Lessee;
use super::map::{Entry, Unreachable};
use super::{SessionError, Sessions};

/// The result of a cleanup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disposed {
    /// The sandboxes that existed and are now gone.
    pub(crate) killed: Vec<SandboxId>,
}

impl Sessions {
    /// Removes the owner's sandbox. Idempotent.
    pub(crate) async fn dispose(self: &Arc<Self>, team: &TeamId, owner: &Owner) -> Result<Disposed, SessionError> {
        let duration = Duration::ZERO;
        let (sessions, from) = (Arc::clone(self), None);
        let lessee = Lessee { sessions, team: team.clone(), owner: owner.clone(), duration, from };
        let killed = self.fleet.leases.end(lessee).await?;
        Ok(Disposed { killed })
    }

    /// The owner's sandboxes that exist now.
    pub(crate) async fn sandboxes_of_owner(
        &self,
        team: &TeamId,
        owner: &Owner,
    ) -> Result<Vec<SandboxId>, SessionError> {
        let recorded = self.store.find_session_of(team, owner).await?.and_then(|row| row.sandbox);
        let noted = self.noted_here(&TeamOwner::new(team, owner)).await.unwrap_or(None);
        let found = self.living(team, owner, recorded.as_ref(), noted.as_ref()).await?;
        Ok(found.iter().map(|sandbox| sandbox.id().clone()).collect())
    }

    /// Returns the sandboxes that were removed.
    pub(super) async fn dispose_alone(&self, team: &TeamId, owner: &Owner) -> Result<Vec<SandboxId>, SessionError> {
        let row = match self.store.find_session_of(team, owner).await? {
            Some(row) => row,
            None => match self.adopt(team, owner).await? {
                Some(row) => row,
                None => return Ok(Vec::new()),
            },
        };
        self.store.begin_ending_session(row.id).await?;
        self.finish_disposal(&row).await
    }

    /// Removes the sandboxes of a session that is being ended, and ends the session.
    pub(super) async fn finish_disposal(&self, row: &SessionRow) -> Result<Vec<SandboxId>, SessionError> {
        let asked = self.noted_here(&TeamOwner::new(&row.team, &row.owner)).await;
        let noted = asked.as_ref().ok().and_then(Option::as_ref);
        let killed = self.kill_living(row, noted).await?;
        if let Err(source) = &asked
            && !row.sandbox.as_ref().is_some_and(|own| killed.contains(own))
        {
            return Err(SessionError::Unfinished { owner: row.owner.clone(), source: *source });
        }
        self.check_note(&row.team, noted).await?;
        if let Some(sandbox) = &row.sandbox {
            self.forget_files(&row.team, &row.owner, sandbox).await;
        }
        self.remove_checkpoints(&row.team, &row.owner).await?;
        self.store.end_session(row).await?;
        if let Some(sandbox) = &row.sandbox {
            self.unmirror(&row.team, &row.owner, sandbox).await;
        }
        if let Some(noted) = noted {
            self.forget_note(&row.team, &row.owner, noted).await?;
        }
        tracing::info!(owner = %row.owner, ?killed, "a session has ended");
        Ok(killed)
    }

    async fn kill_living(&self, row: &SessionRow, noted: Option<&Entry>) -> Result<Vec<SandboxId>, SessionError> {
        let mut killed = Vec::new();
        for sandbox in self.living(&row.team, &row.owner, row.sandbox.as_ref(), noted).await? {
            match sandbox.kill().await {
                Ok(()) => killed.push(sandbox.id().clone()),
                Err(ActError::Refused(Refusal::NotFound)) => {}
                Err(source) => return Err(SessionError::Kill { owner: row.owner.clone(), source }),
            }
        }
        Ok(killed)
    }

    /// Opens a session for a sandbox that has none, so that a failed removal is tried again. Opens one also if only the
    /// map could say whether there is a sandbox, so that it is asked again.
    async fn adopt(&self, team: &TeamId, owner: &Owner) -> Result<Option<SessionRow>, SessionError> {
        let asked = self.map.get(&TeamOwner::new(team, owner)).await;
        let noted = asked.as_ref().ok().and_then(Option::as_ref);
        if noted.is_some_and(|noted| noted.is_held_by_another(&self.server)) {
            return Err(SessionError::Elsewhere(owner.clone()));
        }
        let living = self.living(team, owner, None, noted).await?;
        let Some(sandbox) = living.first() else {
            if asked.is_err() {
                return Ok(Some(self.store.open_session(team, owner).await?));
            }
            self.check_note(team, noted).await?;
            if let Some(noted) = noted {
                self.forget_note(team, owner, noted).await?;
            }
            return Ok(None);
        };
        let row = self.store.open_session(team, owner).await?;
        self.store.attach_session(row.id, sandbox.id(), row.restarts).await?;
        Ok(Some(SessionRow { sandbox: Some(sandbox.id().clone()), ..row }))
    }

    /// The map's entry, unless another server holds the owner.
    async fn noted_here(&self, owner: &TeamOwner) -> Result<Option<Entry>, Unreachable> {
        Ok(self.map.get(owner).await?.filter(|noted| !noted.is_held_by_another(&self.server)))
    }

    /// The recorded sandbox, one that was created but could not be recorded, and the one in the map. Only sandboxes of
    /// this team: whoever can write to the map can put any id into it.
    async fn living(
        &self,
        team: &TeamId,
        owner: &Owner,
        recorded: Option<&SandboxId>,
        noted: Option<&Entry>,
    ) -> Result<Vec<Arc<Sandbox>>, SessionError> {
        let unrecorded = self.store.find_session(team, &owner.session_key()).await?.map(|row| row.id);
        let noted = noted.and_then(|noted| noted.sandbox.parse().ok());
        let mut ids: Vec<SandboxId> = Vec::new();
        for id in recorded.cloned().into_iter().chain(unrecorded).chain(noted) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok(ids.iter().filter_map(|id| self.fleet.find_of(team, id)).collect())
    }

    /// Returns an error with the server's name if the noted sandbox is on another server that shares our database. Other
    /// code notes a sandbox without its server.
    pub(super) async fn check_note(&self, team: &TeamId, noted: Option<&Entry>) -> Result<(), StoreError> {
        match noted.and_then(|noted| noted.sandbox.parse().ok()) {
            Some(id) if self.fleet.find_of(team, &id).is_none() => {
                self.store.check_here(Resource::Sandbox(&id, Some(team))).await
            }
            _ => Ok(()),
        }
    }

    /// Removes an entry of the map, unless its sandbox lives: for another team, or on another server.
    async fn forget_note(&self, team: &TeamId, owner: &Owner, noted: &Entry) -> Result<(), SessionError> {
        if let Ok(id) = noted.sandbox.parse() {
            let row = self.store.find_sandbox(team, &id).await?;
            if self.fleet.find(&id).is_some() || row.is_some_and(|row| !matches!(row.state, State::Ended(_))) {
                return Ok(());
            }
        }
        self.map.remove(&TeamOwner::new(team, owner), &self.server, Some(&noted.sandbox)).await;
        Ok(())
    }
}
