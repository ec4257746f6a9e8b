//! The sandbox of an owner: the one it has, resumed if it was paused; else a new one. However many callers race, there is
//! one, because making it is done alone: in this process by the owner's seat, between servers by the map's lock, and in
//! the store by a unique row.

use std::sync::Arc;
use std::time::Duration;

use isopod_wire::SandboxId;

use super::map::LockError;
use super::seats::{Held, Seat};
use super::{Owner, SessionError, Sessions};
use crate::lifecycle::{ActError, NetworkSettings, NewSandbox, Refusal, Sandbox};
use crate::store::{SessionRow, TeamId};

/// A sandbox that an owner may use now.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) sandbox: Arc<Sandbox>,
    /// The sandbox that this one takes the place of; told to the call that noticed.
    pub(crate) replaced: Option<SandboxId>,
    /// How often the owner's sandbox was replaced.
    pub(crate) restarts: u32,
}

impl Sessions {
    /// Sees to it that the owner has a sandbox that runs for at least `lasting` from now.
    pub(crate) async fn get_or_create(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        lasting: Duration,
    ) -> Result<Lease, SessionError> {
        let seat = self.seats.seat(team, owner);
        if let Some(lease) = self.reuse(team, owner, &seat, lasting).await? {
            return Ok(lease);
        }
        let asked_at = seat.disposals();
        let (sessions, team, owner) = (Arc::clone(self), team.clone(), owner.clone());
        // In a task of its own, so that a caller who goes away does not leave a session half made.
        let making = tokio::spawn(async move {
            let made = {
                let _alone = seat.alone.lock().await;
                sessions.make_alone(&team, &owner, &seat, asked_at, lasting).await
            };
            sessions.seats.forget(&team, &owner, seat);
            made
        });
        making.await.unwrap_or(Err(SessionError::Aborted))
    }

    /// The sandbox that the seat holds, if it still lives.
    async fn reuse(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        seat: &Seat,
        lasting: Duration,
    ) -> Result<Option<Lease>, SessionError> {
        let Some(held) = seat.held() else { return Ok(None) };
        let Some(sandbox) = self.connect(team, owner, &held.sandbox, lasting).await? else { return Ok(None) };
        self.mirror_later(owner, &sandbox);
        Ok(Some(Lease { sandbox, replaced: None, restarts: held.restarts }))
    }

    /// None when it is gone.
    async fn connect(
        &self,
        team: &TeamId,
        owner: &Owner,
        id: &SandboxId,
        lasting: Duration,
    ) -> Result<Option<Arc<Sandbox>>, SessionError> {
        let Some(sandbox) = self.fleet.find_of(team, id) else { return Ok(None) };
        match sandbox.connect(lasting, true, None).await {
            Ok(_) => Ok(Some(sandbox)),
            Err(ActError::Refused(Refusal::NotFound)) => Ok(None),
            Err(source) => Err(SessionError::Use { owner: owner.clone(), source }),
        }
    }

    async fn make_alone(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        seat: &Seat,
        asked_at: u64,
        lasting: Duration,
    ) -> Result<Lease, SessionError> {
        if seat.disposals() != asked_at {
            return Err(SessionError::Disposed(owner.clone()));
        }
        // Whoever was alone before may have made it.
        if let Some(lease) = self.reuse(team, owner, seat, lasting).await? {
            return Ok(lease);
        }
        let lock = self.map.lock(owner, self.lock_patience()).await.map_err(|error| match error {
            LockError::Busy { waited } => SessionError::Busy { owner: owner.clone(), waited },
        })?;
        let made = self.make_locked(team, owner, seat, lasting).await;
        self.map.unlock(owner, lock).await;
        made
    }

    async fn make_locked(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        seat: &Seat,
        lasting: Duration,
    ) -> Result<Lease, SessionError> {
        let noted = self.map.get(owner).await;
        if noted.as_ref().is_some_and(|noted| noted.is_held_by_another(&self.server)) {
            return Err(SessionError::Elsewhere(owner.clone()));
        }
        let row = self.open_row(team, owner).await?;
        let noted = noted.and_then(|noted| noted.sandbox.parse().ok());
        let sandbox = match self.find_living(team, owner, &row, noted, lasting).await? {
            Some(sandbox) => sandbox,
            None => self.create(team, owner, lasting).await?,
        };
        let replaced = row.sandbox.clone().filter(|old| old != sandbox.id());
        let restarts = row.restarts + u32::from(replaced.is_some());
        if row.sandbox.as_ref() != Some(sandbox.id()) {
            self.attach(owner, &row, &sandbox, restarts).await?;
        }
        if let Some(old) = &replaced {
            tracing::warn!(%owner, %old, new = %sandbox.id(), "a session got a new sandbox: its old one is gone");
            self.forget_files(owner, old).await;
        }
        seat.hold(Some(Held { sandbox: sandbox.id().clone(), restarts }));
        self.mirror(owner, &sandbox).await;
        Ok(Lease { sandbox, replaced, restarts })
    }

    /// The live row of the owner. A cleanup that is not confirmed yet is finished first.
    async fn open_row(self: &Arc<Self>, team: &TeamId, owner: &Owner) -> Result<SessionRow, SessionError> {
        let row = self.store.open_session(team, owner).await?;
        if !row.is_ending {
            return Ok(row);
        }
        self.finish_disposal(&row).await?;
        Ok(self.store.open_session(team, owner).await?)
    }

    /// The sandbox of the row, or one that other code has noted in the map for this owner.
    async fn find_living(
        &self,
        team: &TeamId,
        owner: &Owner,
        row: &SessionRow,
        noted: Option<SandboxId>,
        lasting: Duration,
    ) -> Result<Option<Arc<Sandbox>>, SessionError> {
        for id in [row.sandbox.as_ref(), noted.as_ref()].into_iter().flatten() {
            if let Some(sandbox) = self.connect(team, owner, id, lasting).await? {
                return Ok(Some(sandbox));
            }
        }
        Ok(None)
    }

    async fn create(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        lasting: Duration,
    ) -> Result<Arc<Sandbox>, SessionError> {
        let key = owner.session_key();
        let template = self.catalogue.usable(team, &self.settings.template).await.map_err(SessionError::Template)?;
        let wanted = NewSandbox {
            team: team.clone(),
            template,
            timeout: lasting,
            // A long pause for thought or for a person's word keeps everything.
            auto_pause: true,
            auto_pause_memory: true,
            auto_resume: true,
            secure: true,
            allow_internet: None,
            network: NetworkSettings::default(),
            metadata: [(OWNER_METADATA.to_owned(), owner.to_string())].into(),
            env: Default::default(),
            session_key: Some(key.clone()),
            idempotency_key: None,
            mounts: Vec::new(),
            volume_mounts: Vec::new(),
        };
        let made = self.fleet.get_or_create(key, wanted).await;
        made.map_err(|source| SessionError::Create { owner: owner.clone(), source })
    }

    /// A sandbox that cannot be recorded is not kept.
    async fn attach(
        &self,
        owner: &Owner,
        row: &SessionRow,
        sandbox: &Arc<Sandbox>,
        restarts: u32,
    ) -> Result<(), SessionError> {
        let Err(error) = self.store.attach_session(row.id, sandbox.id(), restarts).await else { return Ok(()) };
        // Its owner task tries again until it is gone, so this need not.
        if let Err(kill) = sandbox.kill().await {
            tracing::warn!(%owner, sandbox = %sandbox.id(), error = crate::chain(&kill), "could not remove yet");
        }
        Err(error.into())
    }

    /// Longer than any create takes.
    fn lock_patience(&self) -> Duration {
        self.fleet.create_timeout() + Duration::from_secs(15)
    }
}

/// Tells in lists of sandboxes whose they are.
const OWNER_METADATA: &str = "isopod.owner";
