//! Polled watchers: `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use isopod_wire::rpc::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, FilesystemEvent, GetWatcherEventsRequest, GetWatcherEventsResponse,
    RemoveWatcherRequest, RemoveWatcherResponse,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::fs::resolve;
use crate::fs::watch_dir::Watch;
use crate::rpc::{Call, Code, RpcError};
use crate::users::User;

/// How many events are kept for a client that does not poll.
const MAX_EVENTS: usize = 100_000;

/// All polled watchers.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    table: Mutex<HashMap<String, Watcher>>,
    count: AtomicU64,
}

/// A watcher is a task that owns the watch and the events, and ends when this is dropped.
#[derive(Clone, Debug)]
struct Watcher {
    polls: mpsc::Sender<Poll>,
    wanted: WantedWatch,
}

/// What a client wants to watch.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct WantedWatch {
    user: String,
    path: PathBuf,
    recursive: bool,
    include_entry: bool,
    network_mounts: bool,
}

/// A watcher as a checkpoint holds it, without its events. Another guest may read this: new fields need a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedWatcher {
    id: String,
    watch: WantedWatch,
}

/// Where the reply to a poll goes.
type Poll = oneshot::Sender<Result<Vec<FilesystemEvent>, RpcError>>;

impl Watchers {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Watcher>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn save(&self) -> Vec<SavedWatcher> {
        let table = self.table();
        table.iter().map(|(id, watcher)| SavedWatcher { id: id.clone(), watch: watcher.wanted.clone() }).collect()
    }

    /// Watches again. A directory that is gone has no watcher any more.
    pub(crate) async fn restore(&self, saved: Vec<SavedWatcher>) {
        for SavedWatcher { id, watch } in saved {
            if let Some(user) = User::by_name(&watch.user) {
                let _ = self.add(id, user, watch).await;
            }
        }
    }

    async fn add(&self, id: String, user: User, wanted: WantedWatch) -> Result<(), RpcError> {
        let WantedWatch { path, recursive, include_entry, network_mounts, .. } = wanted.clone();
        let watch = Watch::new(user, path, recursive, include_entry, network_mounts).await?;
        let (polls, requests) = mpsc::channel(1);
        tokio::spawn(collect(watch, requests));
        self.table().insert(id, Watcher { polls, wanted });
        Ok(())
    }

    fn new_id(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        format!("w{now:x}{:x}", self.count.fetch_add(1, Ordering::Relaxed))
    }
}

pub(crate) async fn create_watcher(
    watchers: &Watchers,
    call: Call,
    request: CreateWatcherRequest,
) -> Result<CreateWatcherResponse, RpcError> {
    let user = call.user()?;
    let path = resolve(&call, &user, &request.path)?;
    let wanted = WantedWatch {
        user: user.name.clone(),
        path,
        recursive: request.recursive,
        include_entry: request.include_entry,
        network_mounts: request.allow_network_mounts,
    };
    let watcher_id = watchers.new_id();
    watchers.add(watcher_id.clone(), user, wanted).await?;
    Ok(CreateWatcherResponse { watcher_id })
}

/// Keeps the kernel's queue short between polls, and answers polls until the watcher is removed.
async fn collect(mut watch: Watch, mut polls: mpsc::Receiver<Poll>) {
    let mut collected = Collected::default();
    loop {
        tokio::select! {
            event = watch.next(), if collected.error.is_none() => collected.add(event.map(|event| [event])),
            poll = polls.recv() => {
                let Some(poll) = poll else { return };
                if collected.error.is_none() {
                    // A client that has written a file and polls gets the events of that write.
                    collected.add(watch.events_so_far().await);
                }
                if let Err(Ok(events)) = poll.send(collected.take()) {
                    // The client has left. The next poll gets them.
                    collected.events = events;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Collected {
    events: Vec<FilesystemEvent>,
    /// Why the watch has ended.
    error: Option<RpcError>,
}

impl Collected {
    fn add(&mut self, new: Result<impl IntoIterator<Item = FilesystemEvent>, RpcError>) {
        match new {
            Ok(events) => self.events.extend(events),
            Err(error) => self.error = Some(error),
        }
        if self.events.len() > MAX_EVENTS {
            self.events.truncate(MAX_EVENTS);
            let message = format!("watcher error: more than {MAX_EVENTS} events were not fetched");
            self.error = Some(RpcError::new(Code::ResourceExhausted, message));
        }
    }

    /// Returns the events before the error first.
    fn take(&mut self) -> Result<Vec<FilesystemEvent>, RpcError> {
        match &self.error {
            Some(error) if self.events.is_empty() => Err(error.clone()),
            _ => Ok(std::mem::take(&mut self.events)),
        }
    }
}

pub(crate) async fn get_watcher_events(
    watchers: &Watchers,
    request: GetWatcherEventsRequest,
) -> Result<GetWatcherEventsResponse, RpcError> {
    let watcher = watchers.table().get(&request.watcher_id).cloned().ok_or_else(|| not_found(&request.watcher_id))?;
    let (poll, reply) = oneshot::channel();
    let removed = || not_found(&request.watcher_id);
    watcher.polls.send(poll).await.map_err(|_| removed())?;
    Ok(GetWatcherEventsResponse { events: reply.await.map_err(|_| removed())?? })
}

pub(crate) async fn remove_watcher(
    watchers: &Watchers,
    request: RemoveWatcherRequest,
) -> Result<RemoveWatcherResponse, RpcError> {
    let removed = watchers.table().remove(&request.watcher_id);
    removed.map(|_| RemoveWatcherResponse {}).ok_or_else(|| not_found(&request.watcher_id))
}

fn not_found(id: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("watcher with id {id} not found"))
}
