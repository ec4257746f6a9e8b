//! The map of a server that shares it with nobody. It is in memory and ends with the process. The store has the same
//! information.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use isopod_store::TeamOwner;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Entry, LockError, LockToken, SessionMap, Unreachable};

#[derive(Debug, Default)]
pub(crate) struct EmbeddedMap {
    /// Locked only briefly.
    inner: Mutex<Inner>,
    unlocked: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<TeamOwner, (Entry, Option<Timestamp>)>,
    locks: HashMap<TeamOwner, (String, Instant)>,
}

impl EmbeddedMap {
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, owner: &TeamOwner) -> Option<Entry> {
        let now = Timestamp::now();
        self.with(|inner| {
            if inner.entries.get(owner)?.1.is_some_and(|until| until <= now) {
                inner.entries.remove(owner);
            }
            inner.entries.get(owner).map(|(entry, _)| entry.clone())
        })
    }

    fn try_lock(&self, owner: &TeamOwner, patience: Duration) -> Option<LockToken> {
        let now = Instant::now();
        self.with(|inner| {
            if inner.locks.get(owner).is_some_and(|(_, until)| *until > now) {
                return None;
            }
            let token = new_uuid();
            inner.locks.insert(owner.clone(), (token.clone(), now + patience));
            Some(LockToken(Some(token)))
        })
    }
}

#[async_trait]
impl SessionMap for EmbeddedMap {
    async fn lock(&self, owner: &TeamOwner, patience: Duration) -> Result<LockToken, LockError> {
        let give_up = Instant::now() + patience;
        loop {
            let unlocked = self.unlocked.notified();
            if let Some(token) = self.try_lock(owner, patience) {
                return Ok(token);
            }
            let wait = self.with(|inner| inner.locks.get(owner).map(|(_, until)| *until)).unwrap_or(give_up);
            if Instant::now() >= give_up {
                return Err(LockError::Busy { waited: patience });
            }
            tokio::select! {
                () = unlocked => {}
                () = tokio::time::sleep_until(wait.min(give_up)) => {}
            }
        }
    }

    async fn unlock(&self, owner: &TeamOwner, token: LockToken) {
        self.with(|inner| {
            if inner.locks.get(owner).map(|(held, _)| held) == token.0.as_ref() {
                inner.locks.remove(owner);
            }
        });
        self.unlocked.notify_waiters();
    }

    async fn get(&self, owner: &TeamOwner) -> Result<Option<Entry>, Unreachable> {
        Ok(self.find(owner))
    }

    async fn put(&self, owner: &TeamOwner, entry: &Entry, until: Option<Timestamp>) {
        let present = self.find(owner);
        let server = entry.server.as_deref().unwrap_or_default();
        if present.is_some_and(|present| present.is_held_by_another(server)) {
            return;
        }
        self.with(|inner| inner.entries.insert(owner.clone(), (entry.clone(), until)));
    }

    async fn remove(&self, owner: &TeamOwner, server: &str, sandbox: Option<&str>) {
        self.with(|inner| {
            let Some((entry, _)) = inner.entries.get(owner) else { return };
            if !entry.is_held_by_another(server) && sandbox.is_none_or(|sandbox| sandbox == entry.sandbox) {
                inner.entries.remove(owner);
            }
        });
    }

    fn wants_hashes(&self) -> bool {
        false
    }

    async fn put_hashes(&self, _: &TeamOwner, _: &[(String, Option<String>)], _: Option<Timestamp>) {}

    fn gaps(&self) -> u64 {
        0
    }
}
