//! The file system itself: a tree of nodes over a bucket, with local copies of what the bucket does not have yet.
//!
//! Every call works on the tree in memory under one short lock and writes the journal before it returns. It contacts
//! the store only without the lock. Names and sizes from the bucket are considered valid for a while (`ttl`). Local
//! changes are authoritative until they are uploaded, which is the task of `sync`.

mod attr;
mod cache;
mod content;
mod entry;
mod error;
mod journal;
mod node;
mod read;
mod reconcile;
mod recover;
mod refresh;
mod rename;
mod tree;
mod xattr;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

pub use attr::{SetAttr, Statfs};
pub use entry::Caller;
pub use error::FsError;
pub use node::{Attr, Ino, ROOT};
pub use recover::OpenError;
pub use refresh::DirEntry;
pub use rename::Replace;
pub use tree::{Quota, Usage};
pub use xattr::XattrMode;

pub(crate) use journal::Record;
pub(crate) use node::{Body, Remote};

use crate::attributes::{Attributes, Kind};
use crate::object::ObjectStore;
pub(crate) use cache::Cache;
use journal::{Journal, NodeRecord};
use node::Pending;
use tree::Tree;

/// The journal is compacted after this many bytes were appended.
const JOURNAL_LIMIT: u64 = 32 << 20;

/// The settings of the file system.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory for the journal and the local copies.
    pub state: PathBuf,
    /// How long a name or size from the bucket is considered valid.
    pub ttl: Duration,
    /// The modes of directories and files that have none of their own.
    pub dir_mode: u32,
    pub file_mode: u32,
    /// How long after the last change a file is uploaded, unless it is still being written.
    pub upload_delay: Duration,
    /// The time after which a file is uploaded even if it is still open for writing.
    pub upload_limit: Duration,
    pub parallel_uploads: usize,
    /// The maximum size of copies that the bucket has too.
    pub cache_limit: u64,
    /// How long a call may take before it fails with EIO.
    pub deadline: Duration,
}

impl Settings {
    pub fn new(state: impl Into<PathBuf>) -> Self {
        Self {
            state: state.into(),
            ttl: Duration::from_secs(1),
            dir_mode: 0o777,
            file_mode: 0o666,
            upload_delay: Duration::from_millis(200),
            upload_limit: Duration::from_secs(60),
            parallel_uploads: 16,
            cache_limit: 10 << 30,
            deadline: Duration::from_secs(30),
        }
    }
}

/// The mount through which a call came.
pub type MountId = u64;

/// Something that other mounts may have cached and must drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Attributes(Ino),
    Content(Ino),
    Entry { parent: Ino, name: Vec<u8> },
}

/// A mount that must learn about changes made through other mounts.
pub trait Watcher: Send + Sync + std::fmt::Debug {
    fn id(&self) -> MountId;
    /// Drops the changed entries from the kernel's cache, and then adds permits to `done`. Returns how many.
    fn forget(&self, changes: &[Change], done: &Arc<tokio::sync::Semaphore>) -> u32;
}

/// The file system. It is cheap to share. Calls may come from any thread inside a Tokio runtime.
#[derive(Debug)]
pub struct Vfs {
    /// For work that continues after a call has returned.
    me: Weak<Self>,
    core: Mutex<Core>,
    pub(crate) store: Arc<dyn ObjectStore>,
    cache: Arc<Cache>,
    pub(crate) settings: Settings,
    /// Wakes the workers that upload.
    pub(crate) work: tokio::sync::Notify,
    /// Wakes callers that wait until everything is uploaded.
    pub(crate) settled: tokio::sync::Notify,
    watchers: RwLock<Vec<Weak<dyn Watcher>>>,
    fetches: read::Fetches,
    /// While the store does not respond, known directories are not listed again before this time.
    store_rest: Mutex<Option<Instant>>,
    cached_bytes: AtomicU64,
    /// Held for as long as this process uses the state directory.
    _lock: std::fs::File,
}

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) tree: Tree,
    journal: Journal,
    /// When to do which task for the bucket.
    pub(crate) queue: BTreeSet<(Instant, Task)>,
    /// The keys with a request in progress.
    pub(crate) busy: HashSet<String>,
}

/// A task for the bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Upload(Ino),
    Delete(String),
}

impl Vfs {
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // A panic under the lock may have left a partial change. Continuing would be worse than stopping.
        self.core.lock().expect("a call panicked in the middle of a change")
    }

    pub(crate) fn default_attributes(&self, mode: u32) -> Attributes {
        Attributes { mode, uid: 0, gid: 0, mtime: SystemTime::UNIX_EPOCH, xattrs: Default::default() }
    }

    /// Tells every other mount to drop the changes from its cache, and waits for that. It waits only for a moment,
    /// because the other mount may itself be waiting for the caller.
    pub(crate) async fn announce(&self, from: MountId, changes: &[Change]) {
        const MOMENT: Duration = Duration::from_millis(100);
        let done = Arc::new(tokio::sync::Semaphore::new(0));
        let asked: u32 = self.others(from).iter().map(|watcher| watcher.forget(changes, &done)).sum();
        if asked > 0 && tokio::time::timeout(MOMENT, done.acquire_many(asked)).await.is_err() {
            tracing::debug!(asked, "a mount is slow to drop changed entries from its cache");
        }
    }

    fn others(&self, from: MountId) -> Vec<Arc<dyn Watcher>> {
        let watchers = self.watchers.read().expect("no panic while held");
        watchers.iter().filter_map(Weak::upgrade).filter(|watcher| watcher.id() != from).collect()
    }

    /// Whether a node is this directory or below it.
    pub(crate) fn is_below(&self, ino: Ino, above: Ino) -> bool {
        self.core().tree.is_within(ino, above)
    }

    /// Tells every mount, including the one that made the change, to drop the bytes of a file from its cache.
    pub(crate) fn forget_everywhere(&self, ino: Ino) {
        self.forget_later(vec![Change::Content(ino)]);
    }

    /// Registers a mount for notifications until it is dropped.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        let mut watchers = self.watchers.write().expect("no panic while held");
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(Arc::downgrade(watcher));
    }

    /// Records that a file was uploaded. From now on its copy may be deleted.
    pub(crate) fn note_cached(&self, bytes: u64) {
        self.cached_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Keeps the size of uploaded copies below the limit.
    fn trim_cache(&self, core: &mut Core) {
        if self.cached_bytes.load(Ordering::Relaxed) > self.settings.cache_limit {
            self.trim_to(core, self.settings.cache_limit / 10 * 9);
        }
    }

    /// The cache of local copies.
    pub(crate) fn cache(&self) -> Arc<Cache> {
        self.cache.clone()
    }

    /// Deletes every local copy that the bucket has too and that no program has open. Returns the number of bytes.
    pub fn drop_clean_copies(&self) -> u64 {
        self.trim_to(&mut self.core(), 0)
    }

    fn trim_to(&self, core: &mut Core, limit: u64) -> u64 {
        let mut clean: Vec<(Option<Instant>, Ino, u64)> = core
            .tree
            .nodes()
            .filter(|node| node.pending.is_none() && node.opens == 0 && node.remote.is_some())
            .filter_map(|node| node.file().filter(|file| file.local).map(|file| (file.used, node.ino, file.size)))
            .collect();
        clean.sort_unstable();
        let before: u64 = clean.iter().map(|(_, _, size)| size).sum();
        let mut kept = before;
        for (_, ino, size) in clean {
            if kept <= limit {
                break;
            }
            if let Ok(node) = core.tree.get_mut(ino)
                && let Some(file) = node.file_mut()
            {
                file.local = false;
                file.file = None;
                self.cache.remove(ino);
                kept -= size;
            }
        }
        self.cached_bytes.store(kept, Ordering::Relaxed);
        before - kept
    }
}

impl Core {
    /// Marks a node as changed since its last upload, and plans the upload.
    pub(crate) fn mark(&mut self, ino: Ino, content: bool, delay: Duration) -> Result<(), FsError> {
        self.tree.clock += 1;
        let clock = self.tree.clock;
        let now = Instant::now();
        let node = self.tree.get_mut(ino)?;
        node.touched = clock;
        node.version += 1;
        node.ctime = SystemTime::now();
        let due = now + delay;
        match &mut node.pending {
            Some(pending) => {
                pending.content |= content;
                // Its position in the queue stays. The worker that takes it notices that it is not due yet.
                pending.due = due;
            }
            None => {
                node.pending = Some(Pending { content, since: now, due, attempts: 0, error: None });
                self.queue.insert((due, Task::Upload(ino)));
            }
        }
        Ok(())
    }

    /// Plans the deletion of an object.
    pub(crate) fn plan_deletion(&mut self, key: String, delay: Duration) -> Record {
        tracing::trace!(key, "to be deleted");
        let due = Instant::now() + delay;
        self.tree.deletions.insert(key.clone(), tree::PendingDeletion { due, attempts: 0 });
        self.queue.insert((due, Task::Delete(key.clone())));
        Record::Delete(key)
    }

    /// The journal record of a node.
    pub(crate) fn record(&self, ino: Ino) -> Result<Record, FsError> {
        self.node_record(ino).map(Record::Node)
    }

    /// The journal record of a node that a program has open.
    pub(crate) fn opened_record(&self, ino: Ino) -> Result<Record, FsError> {
        self.node_record(ino).map(Record::Opened)
    }

    fn node_record(&self, ino: Ino) -> Result<Box<NodeRecord>, FsError> {
        let node = self.tree.get(ino)?;
        Ok(Box::new(NodeRecord {
            ino,
            key: self.tree.path_key(ino),
            kind: node.kind(),
            attributes: node.attributes.clone(),
            known: node.known,
            size: node.size(),
            content: node.pending.as_ref().is_some_and(|pending| pending.content),
            target: if let Body::Symlink(target) = &node.body { Some(target.clone()) } else { None },
            remote: node.remote.clone(),
        }))
    }

    /// Writes a frame. When this returns, the call may be acknowledged.
    pub(crate) fn commit(&mut self, records: &[Record]) -> Result<(), FsError> {
        let failed = |source| FsError::Local { what: "write the journal of", source };
        self.journal.append(records).map_err(failed)?;
        if self.journal.grown() > JOURNAL_LIMIT {
            let live = self.live_records();
            // The records are written. It is not a failure of this call if the journal stays long.
            if let Err(error) = self.journal.compact(&live) {
                tracing::warn!(%error, "could not compact the journal; will retry later");
                self.journal.put_off_compaction();
            }
        }
        Ok(())
    }

    /// All records that are needed now.
    fn live_records(&self) -> Vec<Record> {
        let mut pending: Vec<Ino> =
            self.tree.nodes().filter(|node| node.linked && node.pending.is_some()).map(|node| node.ino).collect();
        pending.sort_unstable();
        let nodes = pending.into_iter().filter_map(|ino| self.record(ino).ok());
        let open = self.tree.nodes().filter(|node| node.linked && node.opens > 0 && node.remote.is_some());
        let opened: Vec<Record> = open.filter_map(|node| self.opened_record(node.ino).ok()).collect();
        let nodes = nodes.chain(opened);
        nodes.chain(self.tree.deletions.keys().cloned().map(Record::Delete)).collect()
    }

    /// Removes a node from the tree permanently, and plans the deletion of its object.
    pub(crate) fn remove(&mut self, ino: Ino, delay: Duration) -> Result<Vec<Record>, FsError> {
        let node = self.tree.get(ino)?;
        let mut records = Vec::new();
        if node.pending.is_some() {
            records.push(Record::Settled(ino));
        }
        let mut keys: BTreeSet<String> = node.remote.iter().map(|remote| remote.key.clone()).collect();
        keys.extend(node.attempted.clone());
        if node.kind() == Kind::Directory {
            keys.insert(self.tree.object_key(ino));
        }
        self.tree.detach(ino)?;
        self.tree.lend(ino);
        if let Ok(node) = self.tree.get_mut(ino) {
            node.pending = None;
            node.version += 1;
        }
        records.extend(keys.into_iter().map(|key| self.plan_deletion(key, delay)));
        Ok(records)
    }
}
