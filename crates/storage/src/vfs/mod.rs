//! The file system itself: a tree of nodes over a bucket, with local copies of what the bucket does not have yet.
//!
//! Every call works on the tree in memory under one short lock, writes the journal before it answers, and asks the
//! store only without the lock. Names and sizes that came from the bucket are believed for a while (`ttl`); what was
//! changed here is the truth until it is uploaded. Uploading is the part of `sync`.

mod agree;
mod attr;
mod cache;
mod content;
mod entry;
mod error;
mod journal;
mod node;
mod read;
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

/// The journal is rewritten when so much was appended.
const JOURNAL_LIMIT: u64 = 32 << 20;

/// How the file system behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the journal and the local copies are.
    pub state: PathBuf,
    /// How long a name or size from the bucket is believed.
    pub ttl: Duration,
    /// Mode of directories and files that have none of their own.
    pub dir_mode: u32,
    pub file_mode: u32,
    /// How long after the last change a file is uploaded, unless it is still being written.
    pub upload_delay: Duration,
    /// A file that stays open for writing is uploaded after so long all the same.
    pub upload_limit: Duration,
    pub parallel_uploads: usize,
    /// Copies that the bucket has too may take so many bytes.
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

/// Which mount a call came through.
pub type MountId = u64;

/// What others may have cached and must forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Attributes(Ino),
    Content(Ino),
    Entry { parent: Ino, name: Vec<u8> },
}

/// A mount, as far as it must hear of changes made through others.
pub trait Watcher: Send + Sync + std::fmt::Debug {
    fn id(&self) -> MountId;
    /// Forgets, and afterwards drops the guard.
    fn forget(&self, changes: &[Change], done: &Arc<tokio::sync::Semaphore>) -> u32;
}

/// The file system. Cheap to share; calls may come from any thread inside a tokio runtime.
#[derive(Debug)]
pub struct Vfs {
    /// For what goes on after a call has returned.
    me: Weak<Self>,
    core: Mutex<Core>,
    pub(crate) store: Arc<dyn ObjectStore>,
    cache: Arc<Cache>,
    pub(crate) settings: Settings,
    /// Wakes those who upload.
    pub(crate) work: tokio::sync::Notify,
    /// Wakes those who wait for everything to be uploaded.
    pub(crate) settled: tokio::sync::Notify,
    watchers: RwLock<Vec<Weak<dyn Watcher>>>,
    fetches: read::Fetches,
    /// While the store does not answer, known directories are not listed again before this time.
    store_rest: Mutex<Option<Instant>>,
    cached_bytes: AtomicU64,
    /// Held for as long as this process uses the state directory.
    _lock: std::fs::File,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) tree: Tree,
    journal: Journal,
    /// When to do what for the bucket.
    pub(crate) queue: BTreeSet<(Instant, Task)>,
    /// Keys that a request is under way for.
    pub(crate) busy: HashSet<String>,
}

/// Something to be done for the bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Upload(Ino),
    Delete(String),
}

impl Vfs {
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // A panic while it was held may have left half a change: going on would be worse than stopping.
        self.core.lock().expect("a call panicked in the middle of a change")
    }

    pub(crate) fn default_attributes(&self, mode: u32) -> Attributes {
        Attributes { mode, uid: 0, gid: 0, mtime: SystemTime::UNIX_EPOCH, xattrs: Default::default() }
    }

    /// Tells every other mount to forget, and waits until they did; not for longer than a moment, because the one who
    /// is to forget may itself be waiting for the caller.
    pub(crate) async fn announce(&self, from: MountId, changes: &[Change]) {
        const MOMENT: Duration = Duration::from_millis(100);
        let done = Arc::new(tokio::sync::Semaphore::new(0));
        let asked: u32 = self.others(from).iter().map(|watcher| watcher.forget(changes, &done)).sum();
        if asked > 0 && tokio::time::timeout(MOMENT, done.acquire_many(asked)).await.is_err() {
            tracing::debug!(asked, "a mount is slow to forget");
        }
    }

    fn others(&self, from: MountId) -> Vec<Arc<dyn Watcher>> {
        let watchers = self.watchers.read().expect("no panic while held");
        watchers.iter().filter_map(Weak::upgrade).filter(|watcher| watcher.id() != from).collect()
    }

    /// True if a node is a directory's, or lies below it.
    pub(crate) fn is_below(&self, ino: Ino, above: Ino) -> bool {
        self.core().tree.is_within(ino, above)
    }

    /// Tells every mount, also the one that made the change, to forget the bytes of a file.
    pub(crate) fn forget_everywhere(&self, ino: Ino) {
        self.forget_later(vec![Change::Content(ino)]);
    }

    /// A mount that hears of changes from now on, until it is dropped.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        let mut watchers = self.watchers.write().expect("no panic while held");
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(Arc::downgrade(watcher));
    }

    /// A file was uploaded: from now on its copy may be given up.
    pub(crate) fn note_cached(&self, bytes: u64) {
        self.cached_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Keeps what copies of clean files take below the limit.
    fn trim_cache(&self, core: &mut Core) {
        if self.cached_bytes.load(Ordering::Relaxed) > self.settings.cache_limit {
            self.trim_to(core, self.settings.cache_limit / 10 * 9);
        }
    }

    /// Where local copies are made.
    pub(crate) fn cache(&self) -> Arc<Cache> {
        self.cache.clone()
    }

    /// Gives up every local copy that the bucket has too and that nobody has open. Returns how many bytes that were.
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
    /// Marks a node as one that the bucket does not have as it is, and plans the upload.
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
                // The place in the queue stays: the one who takes it sees that it is not due yet.
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

    /// A node as the journal remembers it.
    pub(crate) fn record(&self, ino: Ino) -> Result<Record, FsError> {
        self.node_record(ino).map(Record::Node)
    }

    /// A node that a program has open, as the journal remembers it.
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

    /// Writes a frame; the call may be answered when this returns.
    pub(crate) fn commit(&mut self, records: &[Record]) -> Result<(), FsError> {
        let failed = |source| FsError::Local { what: "write the journal of", source };
        self.journal.append(records).map_err(failed)?;
        if self.journal.grown() > JOURNAL_LIMIT {
            let live = self.live_records();
            // What was to be written down is; that the journal stays long is no failure of this call.
            if let Err(error) = self.journal.compact(&live) {
                tracing::warn!(%error, "the journal could not be made shorter");
                self.journal.put_off_compaction();
            }
        }
        Ok(())
    }

    /// Everything that must be remembered now.
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

    /// Takes a node out of the tree for good, with the deletion of its object.
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
