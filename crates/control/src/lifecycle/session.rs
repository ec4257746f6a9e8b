//! Sessions: a create whose metadata names a session key is get-or-create. One team and key have one live sandbox,
//! however many callers race.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::create::{CreateRefusal, NewSandbox};
use super::fleet::Fleet;
use super::handle::{ActError, Sandbox};
use super::rules::Refusal;
use crate::store::{SandboxRow, TeamId};

/// The metadata key that makes a create a get-or-create.
pub(crate) const SESSION_KEY: &str = "isopod.session";

/// One lock per session that someone is asking for.
#[derive(Debug, Default)]
pub(crate) struct SessionLocks {
    /// Entries go when nobody holds or awaits their lock any more.
    locks: Mutex<HashMap<(TeamId, String), SessionLock>>,
}

type SessionLock = Arc<tokio::sync::Mutex<()>>;

impl Fleet {
    /// The live sandbox of the session, made or resumed if need be.
    pub(crate) async fn get_or_create(
        self: &Arc<Self>,
        key: String,
        wanted: NewSandbox,
    ) -> Result<Arc<Sandbox>, CreateRefusal> {
        let fleet = Arc::clone(self);
        // In a task of its own, so that a caller who goes away does not leave a session half made.
        let asking = tokio::spawn(async move { fleet.get_or_create_alone(key, wanted).await });
        asking.await.unwrap_or(Err(CreateRefusal::Aborted))
    }

    async fn get_or_create_alone(
        self: &Arc<Self>,
        key: String,
        wanted: NewSandbox,
    ) -> Result<Arc<Sandbox>, CreateRefusal> {
        let name = (wanted.team.clone(), key);
        let lock = self.sessions.lock_of(&name);
        let _alone = lock.lock().await;
        let answer = self.find_or_make(&name.1, wanted).await;
        self.sessions.forget(&name, &lock);
        answer
    }

    async fn find_or_make(self: &Arc<Self>, key: &str, wanted: NewSandbox) -> Result<Arc<Sandbox>, CreateRefusal> {
        if let Some(row) = self.store.find_session(&wanted.team, key).await? {
            check_same(&row, &wanted)?;
            if let Some(sandbox) = self.find(&row.id) {
                match sandbox.connect(wanted.timeout, true, None).await {
                    Ok(_) => return Ok(sandbox),
                    // It ended a moment ago; its successor is made below.
                    Err(ActError::Refused(Refusal::NotFound)) => {}
                    Err(error) => return Err(CreateRefusal::Session(error)),
                }
            }
        }
        self.create(wanted).await
    }
}

fn check_same(row: &SandboxRow, wanted: &NewSandbox) -> Result<(), CreateRefusal> {
    let same = row.template == wanted.template.id
        && row.allow_internet == wanted.allow_internet
        && row.network == wanted.network
        && row.volume_mounts == wanted.volume_mounts
        && row.access_token.is_some() == wanted.secure;
    if same { Ok(()) } else { Err(CreateRefusal::SessionDiffers(row.template.clone())) }
}

impl SessionLocks {
    fn lock_of(&self, name: &(TeamId, String)) -> SessionLock {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(name.clone()).or_default())
    }

    fn forget(&self, name: &(TeamId, String), lock: &SessionLock) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Two are the map's and ours: nobody else waits.
        if Arc::strong_count(lock) <= 2 {
            locks.remove(name);
        }
    }
}
