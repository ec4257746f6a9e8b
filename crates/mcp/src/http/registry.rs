//! All sessions by their ids, with the limits on their number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio_util::task::TaskTracker;

use super::events::Events;
use super::refusal::Refusal;
use super::session::Session;

/// How long a stopping server waits for sandboxes of sessions that have ended.
const STOP: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Registry {
    /// The streams of sessions.
    pub(super) streams: LocalSessionManager,
    pub(super) events: Arc<Events>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    places: Arc<Mutex<HashMap<String, usize>>>,
    max: usize,
    max_of_owner: usize,
    /// The ends of sessions.
    ending: TaskTracker,
}

/// One session of an owner, for the limits.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Mutex<HashMap<String, usize>>>,
    owner: String,
}

impl Registry {
    pub(super) fn new(max: usize, max_of_owner: usize) -> Self {
        let events = Arc::new(Events::default());
        let mut streams = LocalSessionManager::default().with_event_store(Arc::clone(&events) as _);
        // Idle sessions are ended here, where open streams count.
        streams.session_config.keep_alive = None;
        Self {
            streams,
            events,
            sessions: Mutex::default(),
            places: Arc::default(),
            max,
            max_of_owner,
            ending: TaskTracker::new(),
        }
    }

    pub(super) fn reserve(&self, owner: &str) -> Result<Place, Refusal> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.values().sum::<usize>() >= self.max {
            return Err(Refusal::TooMany(self.max));
        }
        let of_owner = places.entry(owner.to_owned()).or_default();
        if *of_owner >= self.max_of_owner {
            return Err(Refusal::TooManyOfOwner(self.max_of_owner));
        }
        *of_owner += 1;
        Ok(Place { places: Arc::clone(&self.places), owner: owner.to_owned() })
    }

    /// The session with this id. Those of others do not exist.
    pub(super) fn find(&self, owner: &str, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).filter(|session| session.owner == owner).cloned()
    }

    pub(super) fn insert(&self, id: &str, session: Arc<Session>) {
        self.sessions().insert(id.to_owned(), session);
    }

    /// Ends a session, unless that was done. It goes on to the end if nobody waits for it.
    pub(super) async fn end(&self, id: &str) {
        let removed = self.sessions().remove(id);
        if let Some(session) = removed
            && let Err(error) = self.ending.spawn(async move { session.end().await }).await
        {
            tracing::error!(%error, "could not end an MCP session");
        }
    }

    pub(super) async fn end_idle(&self, idle: Duration) {
        for id in self.idle_for(idle) {
            self.close_streams(&id).await;
            self.end(&id).await;
        }
    }

    fn idle_for(&self, idle: Duration) -> Vec<String> {
        let sessions = self.sessions();
        sessions.iter().filter(|(_, session)| session.is_idle_for(idle)).map(|(id, _)| id.clone()).collect()
    }

    /// Leaves the sessions to the next server.
    pub(super) async fn stop(&self) {
        let left: Vec<_> = self.sessions().drain().collect();
        for (id, session) in left {
            session.leave();
            self.close_streams(&id).await;
        }
        self.ending.close();
        let _ = tokio::time::timeout(STOP, self.ending.wait()).await;
    }

    async fn close_streams(&self, id: &str) {
        if let Err(error) = self.streams.close_session(&id.into()).await {
            tracing::debug!(%error, "the streams of an MCP session were closed already");
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = places.get_mut(&self.owner) {
            *number -= 1;
            if *number == 0 {
                places.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_limited_for_each_and_for_all_and_come_back() {
        let registry = Registry::new(3, 2);
        let first = registry.reserve("a").unwrap();
        let _second = registry.reserve("a").unwrap();
        assert!(matches!(registry.reserve("a"), Err(Refusal::TooManyOfOwner(2))));
        let _third = registry.reserve("b").unwrap();
        assert!(matches!(registry.reserve("c"), Err(Refusal::TooMany(3))));
        drop(first);
        registry.reserve("a").unwrap();
    }
}
