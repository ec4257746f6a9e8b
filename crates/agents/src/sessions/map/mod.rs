//! The map from owners to sandboxes that other programs may read, and the lock between servers that share it.
//!
//! The store is the source of truth, and the map is written from it. If the map is unreachable, nothing is lost: calls
//! continue without it, and missed changes are written when it is back. Both implementations pass the same tests.

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

/// The entry of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As written by us or by other code that uses the same keys.
    pub(crate) sandbox: String,
    /// The server that wrote it. `None` if other code did.
    pub(crate) server: Option<String>,
}

impl Entry {
    pub(super) fn is_held_by_another(&self, server: &str) -> bool {
        self.server.as_deref().is_some_and(|holder| holder != server)
    }
}

/// Proves that we hold the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockToken(pub(super) Option<String>);

/// Why there is no lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LockError {
    #[error("it was held for {waited:?}")]
    Busy { waited: Duration },
}

/// The map did not answer, so nobody knows whether it has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Redis is unreachable")]
pub(crate) struct Unreachable;

/// Stores which sandbox an owner has.
#[async_trait]
pub(crate) trait SessionMap: fmt::Debug + Send + Sync {
    /// Waits for the owner's lock, for at most `patience`. The lock also expires after `patience`, so that a server
    /// that dies does not block others for long.
    async fn lock(&self, owner: &TeamOwner, patience: Duration) -> Result<LockToken, LockError>;

    /// Releases the lock, if it is still ours.
    async fn unlock(&self, owner: &TeamOwner, token: LockToken);

    async fn get(&self, owner: &TeamOwner) -> Result<Option<Entry>, Unreachable>;

    /// Stores the sandbox until the given time, or permanently. An entry of another server stays unchanged.
    async fn put(&self, owner: &TeamOwner, entry: &Entry, until: Option<Timestamp>);

    /// Removes the owner if the entry names this sandbox, or if none is given. An entry of another server stays.
    async fn remove(&self, owner: &TeamOwner, server: &str, sandbox: Option<&str>);

    /// Whether the map also stores the hashes of inputs.
    fn wants_hashes(&self) -> bool;

    /// Stores the hashes of inputs that a sandbox has. `None` means that it does not have the file.
    async fn put_hashes(&self, owner: &TeamOwner, hashes: &[(String, Option<String>)], until: Option<Timestamp>);

    /// Increases each time the map may have missed a change.
    fn gaps(&self) -> u64;
}
