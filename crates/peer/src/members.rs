//! The members of the cluster, as the database has them, in memory. Whoever is not in this list is refused, also with a
//! valid certificate.
//!
//! The list is read every two seconds. While the database is away, the last one counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::{ClusterNode, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::server_id::ServerId;
use crate::tls::Presented;

pub(crate) const REFRESH_EVERY: Duration = Duration::from_secs(2);
/// A stranger makes us read the list again, but not more often than this.
const MIN_BETWEEN_READS: Duration = Duration::from_millis(200);

/// A member other than this server.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: String,
    key_hash: Vec<u8>,
    /// Whether its lease held when the list was read.
    pub(crate) is_reachable: bool,
    /// Cancelled when it is removed, or comes back with another key.
    pub(crate) gone: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Members {
    store: Store,
    own: ServerId,
    /// Written only by `refresh`.
    known: Mutex<HashMap<ServerId, Member>>,
    /// When the list was last read. Held while it is read, so that strangers wait for one read and cause no others.
    last_read: tokio::sync::Mutex<Option<Instant>>,
}

impl Members {
    pub(crate) fn new(store: Store, own: ServerId) -> Self {
        Self { store, own, known: Mutex::default(), last_read: tokio::sync::Mutex::default() }
    }

    pub(crate) fn find(&self, server: &ServerId) -> Option<Member> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(server).cloned()
    }

    /// Reads the list again if the member is not in it, because it may have joined a moment ago.
    pub(crate) async fn find_or_read(&self, server: &ServerId) -> Option<Member> {
        if let Some(member) = self.find(server) {
            return Some(member);
        }
        self.refresh_for_stranger().await;
        self.find(server)
    }

    /// The other members whose lease holds.
    pub(crate) fn reachable(&self) -> Vec<ServerId> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|(_, member)| member.is_reachable).map(|(server, _)| server.clone()).collect()
    }

    /// The member that showed this certificate. Reads the list again if it is not known, because it may have joined a
    /// moment ago.
    pub(crate) async fn admit(&self, shown: &Presented) -> Option<Member> {
        if let Some(member) = self.matching(shown) {
            return Some(member);
        }
        self.refresh_for_stranger().await;
        self.matching(shown)
    }

    fn matching(&self, shown: &Presented) -> Option<Member> {
        self.find(&shown.server).filter(|member| member.key_hash == shown.key_hash)
    }

    async fn refresh_for_stranger(&self) {
        let asked_at = Instant::now();
        let mut last_read = self.last_read.lock().await;
        if last_read.is_some_and(|read| read > asked_at || read.elapsed() < MIN_BETWEEN_READS) {
            return;
        }
        if let Err(error) = self.read().await {
            tracing::debug!(error = isopod_wire::error_chain(&error), "could not read the members of the cluster");
        }
        *last_read = Some(Instant::now());
    }

    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let mut last_read = self.last_read.lock().await;
        self.read().await?;
        *last_read = Some(Instant::now());
        Ok(())
    }

    async fn read(&self) -> Result<(), StoreError> {
        let rows = self.store.list_cluster_nodes().await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        for row in rows.into_iter().filter(|row| !row.is_removed) {
            let Ok(server) = ServerId::parse(&row.server) else { continue };
            if server != self.own {
                let gone = before.remove(&server).filter(|member| member.key_hash == row.key_hash);
                known.insert(server, member_of(row, gone.map(|member| member.gone)));
            }
        }
        drop(known);
        // Those that are left have been removed, or have another key.
        before.into_values().for_each(|member| member.gone.cancel());
        Ok(())
    }

    /// Reads the list until the server stops.
    pub(crate) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut pace = tokio::time::interval(REFRESH_EVERY);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_read = true;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = pace.tick() => {}
            }
            let read = self.refresh().await;
            if let (Err(error), true) = (&read, is_read) {
                let error = isopod_wire::error_chain(error);
                tracing::warn!(error, "could not read the members of the cluster; the last list counts until then");
            }
            is_read = read.is_ok();
        }
    }
}

fn member_of(row: ClusterNode, gone: Option<CancellationToken>) -> Member {
    let gone = gone.unwrap_or_default();
    let ClusterNode { name, address, key_hash, is_reachable, .. } = row;
    Member { name, address, key_hash, is_reachable, gone }
}
