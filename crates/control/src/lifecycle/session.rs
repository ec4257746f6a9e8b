//! Sessions: a create request with a session key in its metadata is a get-or-create. A team and key have one live
//! sandbox, however many requests race.

use std::sync::Arc;
use std::time::Duration;

use isopod_lease::{Holder, LeaseEnded, LeaseName, Opened};
use isopod_store::{SandboxRow, TeamId};
use isopod_wire::{ALLOW, SandboxId};

use super::create::{CreateRefusal, NewSandbox};
use super::fleet::Fleet;
use super::handle::{ActError, Sandbox};
use super::rules::Refusal;

/// The metadata key that turns a create request into a get-or-create.
pub const SESSION_KEY: &str = "isopod.session";

impl Fleet {
    /// Returns the live sandbox of the session. Creates or resumes it if necessary.
    pub async fn get_or_create(
        self: &Arc<Self>,
        key: String,
        wanted: NewSandbox,
    ) -> Result<Arc<Sandbox>, CreateRefusal> {
        let leased = self.leases.hold(SessionKey { fleet: Arc::clone(self), key, wanted }).await?;
        Ok(leased.sandbox)
    }

    /// Extends a sandbox of the team to `lasting` from now, and resumes it if it is paused. Returns `None` if it is
    /// gone.
    pub async fn connect(
        &self,
        team: &TeamId,
        id: &SandboxId,
        lasting: Duration,
    ) -> Result<Option<Arc<Sandbox>>, ActError> {
        let Some(sandbox) = self.find_of(team, id) else { return Ok(None) };
        match sandbox.connect(lasting, true, None).await {
            Ok(_) => Ok(Some(sandbox)),
            Err(ActError::Refused(Refusal::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A client that names a session. The sandbox's own row is the record.
struct SessionKey {
    fleet: Arc<Fleet>,
    key: String,
    wanted: NewSandbox,
}

impl Holder for SessionKey {
    type Record = ();
    type Sandbox = Arc<Sandbox>;
    type Error = CreateRefusal;

    fn name(&self) -> LeaseName {
        LeaseName { team: self.wanted.team.clone(), key: self.key.clone() }
    }

    fn id(sandbox: &Arc<Sandbox>) -> &SandboxId {
        sandbox.id()
    }

    fn ended(&self, _: LeaseEnded) -> CreateRefusal {
        CreateRefusal::Aborted
    }

    async fn open(&self) -> Result<Opened<(), Arc<Sandbox>>, CreateRefusal> {
        let live = match self.fleet.store.find_session(&self.wanted.team, &self.key).await? {
            Some(row) => {
                self.wanted.check_session(&row)?;
                let connected = self.fleet.connect(&self.wanted.team, &row.id, self.wanted.timeout).await;
                connected.map_err(CreateRefusal::Session)?
            }
            None => None,
        };
        Ok(Opened { record: (), live, recorded: None, restarts: 0 })
    }

    async fn create(&self, (): &()) -> Result<Arc<Sandbox>, CreateRefusal> {
        self.fleet.create(self.wanted.clone()).await
    }
}

impl NewSandbox {
    /// Whether the session's sandbox matches this request.
    pub fn check_session(&self, row: &SandboxRow) -> Result<(), CreateRefusal> {
        let is_same = row.template == self.template.id
            && row.allow_internet == self.allow_internet
            && row.network == self.network
            && row.volume_mounts == self.volume_mounts
            && row.metadata.get(ALLOW) == self.all_metadata().get(ALLOW)
            && row.access_token.is_some() == self.secure;
        if is_same { Ok(()) } else { Err(CreateRefusal::SessionDiffers(row.template.clone())) }
    }
}
