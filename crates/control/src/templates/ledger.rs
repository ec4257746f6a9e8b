//! Tracks how much disk space each team's uploads take, stored ones and those in progress. Bytes are taken from the
//! team's quota before they are written, so concurrent uploads share one quota.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use isopod_store::{Store, StoreError, TeamId};

/// The quotas of all teams.
#[derive(Debug)]
pub(super) struct Ledger {
    limit: u64,
    /// Teams with uploads in progress. Locked for a few instructions.
    accounts: Mutex<HashMap<TeamId, Account>>,
    /// Locked while an account is opened, because the stored size must be known before more is taken.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Account {
    open: usize,
    /// The stored size when the account was opened, plus everything taken since. `None` if it is not known yet.
    used: Option<u64>,
}

/// The space that one upload takes. Released when dropped, unless it is kept.
#[derive(Debug)]
pub(crate) struct Reservation {
    ledger: Arc<Ledger>,
    team: TeamId,
    taken: Mutex<u64>,
}

/// The team has no space left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the team's uploads would exceed {0} bytes")]
pub(crate) struct TeamFull(pub(crate) u64);

impl Ledger {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, accounts: Mutex::default(), opening: tokio::sync::Mutex::default() })
    }

    /// Opens a reservation for an upload of the team.
    pub(super) async fn open(self: &Arc<Self>, store: &Store, team: &TeamId) -> Result<Reservation, StoreError> {
        let _alone = self.opening.lock().await;
        // Join before the store is read: it includes what other uploads recorded and closed by then.
        let reservation = self.join(team);
        if !reservation.is_measured() {
            let kept = store.template_files_size(team).await?;
            self.with(team, |account| account.used = Some(kept));
        }
        Ok(reservation)
    }

    fn join(self: &Arc<Self>, team: &TeamId) -> Reservation {
        self.with(team, |account| account.open += 1);
        Reservation { ledger: Arc::clone(self), team: team.clone(), taken: Mutex::new(0) }
    }

    fn with<T>(&self, team: &TeamId, act: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        act(accounts.entry(team.clone()).or_default())
    }
}

impl Reservation {
    fn is_measured(&self) -> bool {
        self.ledger.with(&self.team, |account| account.used.is_some())
    }

    /// Takes additional bytes.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), TeamFull> {
        let limit = self.ledger.limit;
        self.ledger.with(&self.team, |account| {
            let used = account.used.unwrap_or_default().saturating_add(bytes);
            if used > limit {
                return Err(TeamFull(limit));
            }
            account.used = Some(used);
            Ok(())
        })?;
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        Ok(())
    }

    /// Releases everything, because nothing of it is on the disk any more.
    pub(crate) fn give_back(&self) {
        self.give_back_some(u64::MAX);
    }

    /// Releases a part.
    pub(crate) fn give_back_some(&self, bytes: u64) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.min(*taken);
        *taken -= bytes;
        self.ledger.with(&self.team, |account| account.used = account.used.map(|used| used.saturating_sub(bytes)));
    }

    /// Keeps the space taken: the file stays on the disk, and the store has recorded it.
    pub(super) fn keep(self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
        let mut accounts = self.ledger.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get_mut(&self.team) {
            account.open -= 1;
            if account.open == 0 {
                accounts.remove(&self.team);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn uploads_at_the_same_time_share_one_allowance() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("isopod.db")).await.unwrap();
        let team = store.ensure_team().await.unwrap();
        let other = TeamId("other".to_owned());
        store.record_template_file(&team, "a", 40).await.unwrap();
        let ledger = Ledger::new(100);
        let first = ledger.open(&store, &team).await.unwrap();
        let second = ledger.open(&store, &team).await.unwrap();
        assert_eq!(first.take(50), Ok(()));
        assert_eq!(second.take(11), Err(TeamFull(100)));
        assert_eq!(ledger.open(&store, &other).await.unwrap().take(100), Ok(()));
        assert_eq!(second.take(10), Ok(()));
        // One that ends well stays counted, also for those that began before; one that does not is given back.
        store.record_template_file(&team, "b", 50).await.unwrap();
        first.keep();
        assert_eq!(second.take(1), Err(TeamFull(100)));
        drop(second);
        let third = ledger.open(&store, &team).await.unwrap();
        assert_eq!((third.take(11), third.take(10)), (Err(TeamFull(100)), Ok(())));
        drop(third);
        assert!(ledger.accounts.lock().unwrap().is_empty());
    }
}
