//! The sandbox of an owner, as a lease. The owner's row is the record, and the map's lock coordinates servers that
//! share a map.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::{NewSandbox, Sandbox};
use isopod_lease::{EndLease, Holder, LeaseEnded, LeaseName, Leased, Opened};
use isopod_store::{NetworkSettings, Owner, SessionRow, TeamId, TeamOwner};
use isopod_wire::SandboxId;

use super::map::{LockError, LockToken};
use super::{SessionError, Sessions};

/// A sandbox that an owner may use now.
pub(super) type Lease = Leased<Arc<Sandbox>>;

/// An owner that uses or ends its sandbox.
pub(super) struct Lessee {
    pub(super) sessions: Arc<Sessions>,
    pub(super) team: TeamId,
    pub(super) owner: Owner,
    /// How long the sandbox must run from now on.
    pub(super) duration: Duration,
    /// The template of a new one, if not that of the settings.
    pub(super) from: Option<String>,
}

/// What is open while the owner's sandbox is created or replaced.
pub(super) struct Record {
    row: SessionRow,
    lock: LockToken,
}

impl Sessions {
    /// Ensures that the owner has a sandbox that runs for at least `duration` from now.
    pub(super) async fn get_or_create(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        duration: Duration,
    ) -> Result<Lease, SessionError> {
        self.get_or_create_from(team, owner, duration, None).await
    }

    /// As [`Self::get_or_create`]. A new sandbox is made from this template, which may be a snapshot.
    pub(super) async fn get_or_create_from(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        duration: Duration,
        from: Option<String>,
    ) -> Result<Lease, SessionError> {
        let lessee = Lessee { sessions: Arc::clone(self), team: team.clone(), owner: owner.clone(), duration, from };
        self.fleet.leases.hold(lessee).await
    }

    /// Longer than any create takes.
    fn lock_patience(&self) -> Duration {
        self.fleet.create_timeout() + Duration::from_secs(15)
    }
}

impl Holder for Lessee {
    type Record = Record;
    type Sandbox = Arc<Sandbox>;
    type Error = SessionError;

    const IS_REMEMBERED: bool = true;

    fn name(&self) -> LeaseName {
        LeaseName { team: self.team.clone(), key: self.owner.session_key() }
    }

    fn id(sandbox: &Arc<Sandbox>) -> &SandboxId {
        sandbox.id()
    }

    fn ended(&self, why: LeaseEnded) -> SessionError {
        match why {
            LeaseEnded::Meanwhile => SessionError::Disposed(self.owner.clone()),
            LeaseEnded::Aborted => SessionError::Aborted,
        }
    }

    async fn reuse(&self, id: &SandboxId) -> Result<Option<Arc<Sandbox>>, SessionError> {
        let sandbox = self.connect(id).await?;
        if let Some(sandbox) = &sandbox {
            self.sessions.mirror_later(&self.owner, sandbox);
        }
        Ok(sandbox)
    }

    async fn open(&self) -> Result<Opened<Record, Arc<Sandbox>>, SessionError> {
        let sessions = &self.sessions;
        let lock = sessions.map.lock(&self.key(), sessions.lock_patience()).await.map_err(|error| match error {
            LockError::Busy { waited } => SessionError::Busy { owner: self.owner.clone(), waited },
        })?;
        match self.open_locked().await {
            Ok((row, live)) => {
                let (recorded, restarts) = (row.sandbox.clone(), row.restarts);
                Ok(Opened { record: Record { row, lock }, live, recorded, restarts })
            }
            Err(error) => {
                sessions.map.unlock(&self.key(), lock).await;
                Err(error)
            }
        }
    }

    async fn create(&self, _: &Record) -> Result<Arc<Sandbox>, SessionError> {
        let Self { sessions, team, owner, duration, from } = self;
        let template = from.as_deref().unwrap_or(&sessions.settings.template);
        let template = sessions.catalogue.usable(team, template).await.map_err(SessionError::Template)?;
        let wanted = NewSandbox {
            team: team.clone(),
            template,
            timeout: *duration,
            // A long pause, for thinking or for an approval, keeps everything.
            auto_pause: true,
            auto_pause_memory: true,
            auto_resume: true,
            secure: true,
            allow_internet: None,
            network: NetworkSettings::default(),
            metadata: [(OWNER_METADATA.to_owned(), owner.to_string())].into(),
            env: Default::default(),
            session_key: Some(owner.session_key()),
            idempotency_key: None,
            mounts: Vec::new(),
            volume_mounts: Vec::new(),
        };
        let made = sessions.fleet.create(wanted).await;
        made.map_err(|source| SessionError::Create { owner: owner.clone(), source })
    }

    async fn record(&self, Record { row, .. }: &Record, lease: &Lease) -> Result<(), SessionError> {
        let Self { sessions, team, owner, .. } = self;
        let new = lease.sandbox.id();
        if row.sandbox.as_ref() != Some(new) {
            sessions.store.attach_session(row.id, new, lease.restarts).await?;
        }
        if let Some(old) = &lease.replaced {
            tracing::warn!(%owner, %old, %new, "replaced the sandbox of a session because the old one is gone");
            sessions.forget_files(team, owner, old).await;
        }
        // Other servers that share the map must find it before the lock is released.
        sessions.mirror(owner, &lease.sandbox).await;
        Ok(())
    }

    async fn discard(&self, sandbox: Arc<Sandbox>) {
        // The sandbox's controller retries until it is gone, so there is no need to retry here.
        if let Err(error) = sandbox.kill().await {
            let error = isopod_wire::error_chain(&error);
            tracing::warn!(owner = %self.owner, sandbox = %sandbox.id(), error, "could not remove a sandbox yet");
        }
    }

    async fn close(&self, Record { lock, .. }: Record) {
        self.sessions.map.unlock(&self.key(), lock).await;
    }
}

impl EndLease for Lessee {
    type Ended = Vec<SandboxId>;

    async fn end(&self) -> Result<Vec<SandboxId>, SessionError> {
        self.sessions.dispose_alone(&self.team, &self.owner).await
    }
}

impl Lessee {
    fn key(&self) -> TeamOwner {
        TeamOwner::new(&self.team, &self.owner)
    }

    /// Returns `None` if it is gone.
    async fn connect(&self, id: &SandboxId) -> Result<Option<Arc<Sandbox>>, SessionError> {
        let connected = self.sessions.fleet.connect(&self.team, id, self.duration).await;
        connected.map_err(|source| SessionError::Use { owner: self.owner.clone(), source })
    }

    /// The row of the owner, and its sandbox if that is alive.
    async fn open_locked(&self) -> Result<(SessionRow, Option<Arc<Sandbox>>), SessionError> {
        let sessions = &self.sessions;
        // Without an answer the call continues with what the store knows.
        let noted = sessions.map.get(&self.key()).await.unwrap_or(None);
        if noted.as_ref().is_some_and(|noted| noted.is_held_by_another(&sessions.server)) {
            return Err(SessionError::Elsewhere(self.owner.clone()));
        }
        sessions.check_note(&self.team, noted.as_ref()).await?;
        let row = self.open_row().await?;
        let noted = noted.and_then(|noted| noted.sandbox.parse().ok());
        let live = self.find_living(&row, noted).await?;
        Ok((row, live))
    }

    /// An unconfirmed cleanup is finished first.
    async fn open_row(&self) -> Result<SessionRow, SessionError> {
        let store = &self.sessions.store;
        let row = store.open_session(&self.team, &self.owner).await?;
        if !row.is_ending {
            return Ok(row);
        }
        self.sessions.finish_disposal(&row).await?;
        Ok(store.open_session(&self.team, &self.owner).await?)
    }

    /// The sandbox of the row, one that other code put into the map for this owner, or one that was created but not
    /// recorded.
    async fn find_living(
        &self,
        row: &SessionRow,
        noted: Option<SandboxId>,
    ) -> Result<Option<Arc<Sandbox>>, SessionError> {
        let unrecorded = self.sessions.store.find_session(&self.team, &self.owner.session_key()).await?;
        for id in row.sandbox.iter().chain(&noted).chain(unrecorded.iter().map(|row| &row.id)) {
            if let Some(sandbox) = self.connect(id).await? {
                return Ok(Some(sandbox));
            }
        }
        Ok(None)
    }
}

/// Shows the owner in lists of sandboxes.
const OWNER_METADATA: &str = "isopod.owner";
