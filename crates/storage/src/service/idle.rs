//! The users of the daemon, and its end when there are none.
//!
//! Users are attached clients, requests, mounts of sandboxes and of people, and pending uploads. The server's own mount
//! does not count, because the server is attached.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::client::{LOCK, ROOT_MOUNT};
use super::message::{DEFAULT_IDLE_EXIT, FailureKind, MountStatus, Request};
use super::worker::{Refusal, State, Worker};
use crate::sync::SyncStatus;

/// The current users.
#[derive(Debug)]
pub(super) struct Usage {
    clients: BTreeMap<u64, String>,
    next_client: u64,
    /// The number of requests in progress.
    active: usize,
    last: Instant,
}

impl Default for Usage {
    fn default() -> Self {
        Self { clients: BTreeMap::new(), next_client: 0, active: 0, last: Instant::now() }
    }
}

impl Usage {
    /// The names of the attached clients.
    pub(super) fn clients(&self) -> Vec<String> {
        self.clients.values().cloned().collect()
    }
}

/// A request in progress. Empty for requests that only read.
pub(super) struct Active<'a>(Option<&'a Worker>);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        if let Some(worker) = self.0 {
            let usage = &mut worker.state().usage;
            usage.active -= 1;
            usage.last = Instant::now();
        }
    }
}

/// An attached client, which uses the daemon until this is dropped.
pub(super) struct Attached<'a> {
    worker: &'a Worker,
    id: u64,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let usage = &mut self.worker.state().usage;
        usage.clients.remove(&self.id);
        usage.last = Instant::now();
    }
}

impl Worker {
    pub(super) fn attach(&self, who: String) -> Attached<'_> {
        let usage = &mut self.state().usage;
        usage.next_client += 1;
        let id = usage.next_client;
        usage.clients.insert(id, who);
        Attached { worker: self, id }
    }

    pub(super) fn count_active(&self, request: &Request) -> Active<'_> {
        if matches!(request, Request::Status) {
            return Active(None);
        }
        self.state().usage.active += 1;
        Active(Some(self))
    }

    /// Returns an error if the daemon is in use.
    pub(super) fn check_unused(&self) -> Result<(), Refusal> {
        self.tidy();
        let uses = {
            let state = self.state();
            self.uses(&state)
        };
        if let Some(first) = uses.first() {
            let more = if uses.len() > 1 { format!(", and {} more", uses.len() - 1) } else { String::new() };
            return Err(Refusal { kind: FailureKind::InUse, message: format!("{first}{more}") });
        }
        let left = self.state().waiting();
        if left.uploads + left.deletions > 0 {
            let because = left.error.map(|error| format!(": {error}")).unwrap_or_default();
            let message = format!(
                "not everything is uploaded yet: {} uploads with {} bytes and {} deletions are pending{because}",
                left.uploads, left.bytes, left.deletions
            );
            return Err(Refusal { kind: FailureKind::NotUploaded, message });
        }
        Ok(())
    }

    /// A description of each user: servers, sandboxes, and mounts on this host in which a program works.
    fn uses(&self, state: &State) -> Vec<String> {
        let clients = state.usage.clients.values().map(|who| format!("{who} uses it"));
        let mounts = state.served.values().map(|served| &served.mount);
        let used = mounts.filter_map(|mount| match (&mount.owner, &mount.path) {
            (Some(owner), _) => Some(format!("sandbox execution {owner} uses it")),
            (None, Some(path)) if is_busy(path) => Some(format!("a program works in {}", path.display())),
            _ => None,
        });
        clients.chain(used).collect()
    }

    /// Ends this process if it was unused for as long as the settings say.
    pub(super) fn leave_if_unused(&self) {
        let root = self.directory.join(ROOT_MOUNT);
        {
            let mut state = self.state();
            if !state.is_idle(&root) {
                state.usage.last = Instant::now();
            }
            if state.usage.last.elapsed() < state.idle_exit() || state.is_ending {
                return;
            }
        }
        // A client that is about to use us holds the lock. It has either asked already or will find no daemon.
        let Ok(lock) = File::options().create(true).truncate(false).write(true).open(self.directory.join(LOCK)) else {
            return;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let is_still_idle = {
            let state = self.state();
            state.is_idle(&root) && state.usage.last.elapsed() >= state.idle_exit()
        };
        if is_still_idle && !is_busy(&root) {
            tracing::info!("the workspace is unused and everything is uploaded; the daemon ends");
            self.stop();
            self.leave();
        }
    }
}

impl State {
    fn idle_exit(&self) -> Duration {
        self.open.as_ref().map_or(DEFAULT_IDLE_EXIT, |open| open.settings.tunables.idle_exit)
    }

    /// What is not uploaded yet.
    fn waiting(&self) -> SyncStatus {
        self.open.as_ref().map(|open| open.daemon.vfs().sync_status()).unwrap_or_default()
    }

    fn is_idle(&self, root: &Path) -> bool {
        let is_use = |mount: &MountStatus| mount.path.as_deref() != Some(root);
        if !self.usage.clients.is_empty() || self.usage.active > 0 {
            return false;
        }
        if self.served.values().any(|served| is_use(&served.mount)) {
            return false;
        }
        let waiting = self.waiting();
        waiting.uploads + waiting.deletions == 0
    }
}

/// Whether a program has its working directory or an open file on a mount of this host. Asks the kernel to mark the
/// mount as expired, which it refuses if the mount is in use.
fn is_busy(path: &Path) -> bool {
    // A mount that is already marked would be unmounted. Accessing it clears the mark.
    drop(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()));
    matches!(unmount(path, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW), Err(Errno::BUSY))
}
