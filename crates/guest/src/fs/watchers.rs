//! Polled watchers: `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use isopod_wire::rpc::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, FilesystemEvent, GetWatcherEventsRequest, GetWatcherEventsResponse,
    RemoveWatcherRequest, RemoveWatcherResponse,
};

use crate::fs::resolve;
use crate::fs::watch_dir::Watch;
use crate::rpc::{Call, Code, RpcError};

/// How many events are kept for a client that does not poll.
const MAX_EVENTS: usize = 100_000;

/// All polled watchers.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    table: Mutex<HashMap<String, Watcher>>,
    count: AtomicU64,
}

#[derive(Debug)]
struct Watcher {
    /// Filled by the task, emptied by the client.
    events: Arc<Mutex<Collected>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Collected {
    events: Vec<FilesystemEvent>,
    error: Option<RpcError>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watchers {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Watcher>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
    let watch = Watch::new(user, path, request.recursive, request.include_entry, request.allow_network_mounts).await?;
    let events = Arc::new(Mutex::new(Collected::default()));
    let task = tokio::spawn(collect(watch, Arc::clone(&events)));
    let watcher_id = watchers.new_id();
    watchers.table().insert(watcher_id.clone(), Watcher { events, task });
    Ok(CreateWatcherResponse { watcher_id })
}

async fn collect(mut watch: Watch, collected: Arc<Mutex<Collected>>) {
    loop {
        let next = watch.next().await;
        let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Ok(event) if collected.events.len() < MAX_EVENTS => collected.events.push(event),
            Ok(_) => {
                let message = format!("watcher error: more than {MAX_EVENTS} events were not fetched");
                collected.error = Some(RpcError::new(Code::ResourceExhausted, message));
                return;
            }
            Err(error) => {
                collected.error = Some(error);
                return;
            }
        }
    }
}

pub(crate) async fn get_watcher_events(
    watchers: &Watchers,
    request: GetWatcherEventsRequest,
) -> Result<GetWatcherEventsResponse, RpcError> {
    let table = watchers.table();
    let watcher = table.get(&request.watcher_id).ok_or_else(|| not_found(&request.watcher_id))?;
    let mut collected = watcher.events.lock().unwrap_or_else(PoisonError::into_inner);
    // Return the events before the error first.
    if let Some(error) = collected.error.clone().filter(|_| collected.events.is_empty()) {
        return Err(error);
    }
    Ok(GetWatcherEventsResponse { events: std::mem::take(&mut collected.events) })
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
