//! The map from owners to sandboxes that other programs may read, and the lock between servers that share it.
//!
//! The store is the truth; this is written from it. A map that cannot be reached loses nothing: calls go on without it,
//! and what it missed is written when it is back. Both kinds pass the same tests.

mod embedded;
mod redis;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

pub(crate) use embedded::EmbeddedMap;
pub(crate) use redis::{RedisMap, RedisUrlError};

use isopod_store::TeamOwner;
use isopod_store::clock::Timestamp;

/// What the map says about an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As written: by us, or by other code that uses the same keys.
    pub(crate) sandbox: String,
    /// The server that wrote it; none where other code did.
    pub(crate) server: Option<String>,
}

impl Entry {
    pub(super) fn is_held_by_another(&self, server: &str) -> bool {
        self.server.as_deref().is_some_and(|holder| holder != server)
    }
}

/// Shows that the lock is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockToken(pub(super) Option<String>);

/// Why there is no lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LockError {
    #[error("it was held for {waited:?}")]
    Busy { waited: Duration },
}

/// Where owners and their sandboxes are noted.
#[async_trait]
pub(crate) trait SessionMap: fmt::Debug + Send + Sync {
    /// Waits for the owner's lock. It is given up by itself after `patience`, so that a server that dies holds up nobody
    /// for long; who waits longer than that gives up.
    async fn lock(&self, owner: &TeamOwner, patience: Duration) -> Result<LockToken, LockError>;

    /// Gives the lock back, if it is still ours.
    async fn unlock(&self, owner: &TeamOwner, token: LockToken);

    async fn get(&self, owner: &TeamOwner) -> Option<Entry>;

    /// Notes the sandbox, until that time or for good. An entry of another server is left alone.
    async fn put(&self, owner: &TeamOwner, entry: &Entry, until: Option<Timestamp>);

    /// Forgets the owner if the entry names this sandbox or none is given. What another server wrote stays.
    async fn remove(&self, owner: &TeamOwner, server: &str, sandbox: Option<&str>);

    /// Whether the hashes of inputs are wanted too.
    fn wants_hashes(&self) -> bool;

    /// Notes the hashes of inputs that a sandbox has; none means that it does not have the file.
    async fn put_hashes(&self, owner: &TeamOwner, hashes: &[(String, Option<String>)], until: Option<Timestamp>);

    /// Grows each time the map may have missed something.
    fn gaps(&self) -> u64;
}
