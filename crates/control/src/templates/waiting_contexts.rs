//! Contexts that arrived before their builds were started. Clients of version 1 request a build, let `docker` send the
//! files, and start the build afterwards. A client that ends before that leaves its context here, until it is too old.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_api::TeamPermit;
use isopod_store::{BuildStatus, StoreError};

use super::builds::{Context, remove_context};
use super::catalogue::Catalogue;

/// A context with what else the client said about the build.
#[derive(Debug)]
pub(crate) struct WaitingContext {
    pub(crate) context: Context,
    /// Values for `ARG`s.
    pub(crate) args: BTreeMap<String, String>,
    pub(crate) force: bool,
    /// The permit of the build, so that a team cannot send contexts without end.
    pub(crate) permit: TeamPermit,
    pub(crate) arrived: Instant,
}

/// How long the start of a build may take after its files were sent.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// By build id.
#[derive(Debug, Default)]
pub(crate) struct WaitingContexts {
    /// Locked for a few instructions.
    contexts: Mutex<HashMap<String, WaitingContext>>,
}

impl WaitingContexts {
    /// Returns the earlier context of that build.
    fn put(&self, build: &str, waiting: WaitingContext) -> Option<WaitingContext> {
        self.lock().insert(build.to_owned(), waiting)
    }

    /// Returns the context of a build that is about to start.
    pub(crate) fn take(&self, build: &str) -> Option<WaitingContext> {
        self.lock().remove(build)
    }

    fn take_old(&self, now: Instant) -> Vec<WaitingContext> {
        let is_old = |waiting: &WaitingContext| now.saturating_duration_since(waiting.arrived) >= MAX_WAIT;
        self.lock().extract_if(|_, waiting| is_old(waiting)).map(|(_, waiting)| waiting).collect()
    }

    /// Removes what has waited too long.
    pub(super) async fn forget_old(&self, now: Instant) {
        for waiting in self.take_old(now) {
            remove_context(Some(&waiting.context)).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, WaitingContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Catalogue {
    /// Keeps a context until its build starts. Returns `false`, and removes the context, if the build has begun.
    pub(crate) async fn keep_context(
        &self,
        template: &str,
        build: &str,
        waiting: WaitingContext,
    ) -> Result<bool, StoreError> {
        if let Some(earlier) = self.waiting.put(build, waiting) {
            remove_context(Some(&earlier.context)).await;
        }
        // The build may have begun, or its template may be gone, since the upload began.
        let now = self.store.build(template, build).await;
        if now.as_ref().is_ok_and(|build| build.as_ref().is_some_and(|build| build.status == BuildStatus::Requested)) {
            return Ok(true);
        }
        if let Some(unused) = self.waiting.take(build) {
            remove_context(Some(&unused.context)).await;
        }
        now.map(|_| false)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use isopod_api::PerTeamLimit;
    use isopod_store::{Store, TeamId};

    use super::super::ledger::Ledger;
    use super::*;

    #[tokio::test]
    async fn a_context_whose_build_never_starts_is_removed_and_its_space_and_permit_are_free() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("isopod.db")).await.unwrap();
        let team = TeamId("t".to_owned());
        let (ledger, permits) = (Ledger::new(100), PerTeamLimit::new(1));
        let path = dir.path().join("context");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a.txt"), "a").unwrap();
        let held = ledger.open(&store, &team).await.unwrap();
        held.take(100).unwrap();
        let arrived = Instant::now();
        let waiting = waiting(&path, held, permits.take(&team).unwrap(), arrived);
        let contexts = WaitingContexts::default();
        assert!(contexts.put("b", waiting).is_none());

        contexts.forget_old(arrived + MAX_WAIT - Duration::from_secs(1)).await;
        assert!(path.exists() && permits.take(&team).is_none());
        contexts.forget_old(arrived + MAX_WAIT).await;
        assert!(!path.exists() && contexts.take("b").is_none());
        assert!(permits.take(&team).is_some());
        assert_eq!(ledger.open(&store, &team).await.unwrap().take(100), Ok(()));
    }

    fn waiting(
        path: &Path,
        held: super::super::ledger::Reservation,
        permit: TeamPermit,
        arrived: Instant,
    ) -> WaitingContext {
        let context = Context { path: path.to_owned(), held };
        WaitingContext { context, args: BTreeMap::new(), force: false, permit, arrived }
    }
}
