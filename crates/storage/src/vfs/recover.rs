//! Opens the file system: reads the journal, restores what the bucket does not have, and continues the uploads.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::cache::Cache;
use super::journal::{Journal, NodeRecord, Record};
use super::node::{Body, FileBody, Ino, ROOT};
use super::tree::Tree;
use super::{Core, FsError, Settings, Vfs};
use crate::attributes::{Attributes, Kind};
use crate::name;
use crate::object::ObjectStore;

/// Why the file system could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the state directory {path}")]
    State { path: String, source: io::Error },
    #[error("another process uses the state directory {0}")]
    InUse(String),
    #[error("the journal is inconsistent")]
    Journal(#[source] FsError),
}

/// The content of the journal, after later records have replaced earlier ones.
#[derive(Debug, Default)]
struct Remembered {
    nodes: BTreeMap<Ino, NodeRecord>,
    opened: BTreeMap<Ino, NodeRecord>,
    deletions: BTreeSet<String>,
    highest: Ino,
}

impl Vfs {
    /// Opens the file system over a store.
    pub fn open(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Arc<Self>, OpenError> {
        let failed = |source| OpenError::State { path: settings.state.display().to_string(), source };
        let lock = lock(&settings)?;
        give_up_reserve(&settings.state);
        let (journal, records) = Journal::open(&settings.state).map_err(failed)?;
        let cache = Cache::open(&settings.state.join("copies")).map_err(failed)?;
        let remembered = Remembered::from(records);
        let dirty = remembered.nodes.values().filter(|node| node.content).map(|node| node.ino).collect();
        cache.retain(&dirty).map_err(failed)?;
        let root = Attributes {
            mode: settings.dir_mode,
            uid: 0,
            gid: 0,
            mtime: SystemTime::now(),
            xattrs: Default::default(),
        };
        let mut core = Core { tree: Tree::new(root), journal, queue: BTreeSet::new(), busy: HashSet::new() };
        // A kernel that continues an earlier mount knows numbers that the journal has forgotten. No number is used
        // twice.
        core.tree.skip_to(next_epoch(&settings.state).map_err(failed)? << EPOCH_SHIFT);
        restore(&mut core, &cache, &settings, remembered).map_err(OpenError::Journal)?;
        let live = core.live_records();
        match core.journal.compact(&live) {
            // On a full disk, continue with the long journal. Only uploads free space, and they need this process.
            Err(error) if is_full(&error) => tracing::warn!("the disk is full; the journal was not compacted"),
            done => done.map_err(failed)?,
        }
        keep_reserve(&settings.state);
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            core: Mutex::new(core),
            store,
            cache: Arc::new(cache),
            settings,
            work: Default::default(),
            settled: Default::default(),
            watchers: Default::default(),
            fetches: Default::default(),
            store_rest: Mutex::new(None),
            cached_bytes: AtomicU64::new(0),
            _lock: lock,
        }))
    }
}

impl Vfs {
    /// Finds or restores a directory that an earlier process showed, without contacting the store, which may be
    /// unavailable. Its content is requested when it is accessed.
    pub fn resume_directory(&self, path: &[&[u8]]) -> Result<Ino, FsError> {
        let key = path.iter().map(|part| name::encode(part)).collect::<Vec<_>>().join("/");
        let mut core = self.core();
        let ino = ensure_directory(&mut core, &self.settings, &key)?;
        let node = core.tree.get(ino)?;
        if node.kind() != Kind::Directory {
            return Err(FsError::NotDirectory);
        }
        if node.pending.is_none() && core.tree.deletions.contains_key(&core.tree.object_key(ino)) {
            // It was removed here, and the bucket does not know yet. A mount with this directory as its root gets a new
            // one.
            core.mark(ino, false, Duration::ZERO)?;
            let record = core.record(ino)?;
            core.commit(&[record])?;
            self.work.notify_one();
        }
        Ok(ino)
    }
}

/// Reserved space for what an opening must write, so that a daemon can start again on a disk that its files have
/// filled.
const RESERVE: &str = "reserve";
const RESERVED: usize = 64 << 10;

fn give_up_reserve(state: &std::path::Path) {
    let _ = std::fs::remove_file(state.join(RESERVE));
}

fn keep_reserve(state: &std::path::Path) {
    if let Err(error) = std::fs::write(state.join(RESERVE), [0; RESERVED]) {
        tracing::warn!(%error, "could not reserve disk space for the next start");
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The number of bits for the node numbers of one process.
const EPOCH_SHIFT: u32 = 40;

/// How often this state directory was opened, including this time.
fn next_epoch(state: &std::path::Path) -> io::Result<u64> {
    let path = state.join("epoch");
    let before: u64 = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let new = state.join("epoch.new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(format!("{}\n", before + 1).as_bytes())?;
    // Otherwise a power failure may leave an empty file with this name, and the state could never be opened again.
    file.sync_data()?;
    std::fs::rename(&new, &path)?;
    Ok(before + 1)
}

/// Allows one process at a time. The kernel releases the lock when the process ends, however it ends.
fn lock(settings: &Settings) -> Result<std::fs::File, OpenError> {
    let path = settings.state.display().to_string();
    let failed = |source| OpenError::State { path: path.clone(), source };
    std::fs::create_dir_all(&settings.state).map_err(failed)?;
    let file = std::fs::File::create(settings.state.join("lock")).map_err(failed)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(path)),
        Err(error) => Err(failed(error.into())),
    }
}

impl From<Vec<Record>> for Remembered {
    fn from(records: Vec<Record>) -> Self {
        let mut remembered = Self::default();
        for record in records {
            match record {
                Record::Node(node) => {
                    remembered.highest = remembered.highest.max(node.ino);
                    remembered.nodes.insert(node.ino, *node);
                }
                Record::Opened(node) => {
                    remembered.highest = remembered.highest.max(node.ino);
                    remembered.opened.insert(node.ino, *node);
                }
                Record::Closed(ino) => drop(remembered.opened.remove(&ino)),
                Record::Settled(ino) => drop(remembered.nodes.remove(&ino)),
                Record::Delete(key) => drop(remembered.deletions.insert(key)),
                Record::DeletionSettled(key) => drop(remembered.deletions.remove(&key)),
            }
        }
        remembered
    }
}

fn restore(core: &mut Core, cache: &Cache, settings: &Settings, remembered: Remembered) -> Result<(), FsError> {
    core.tree.skip_to(remembered.highest);
    // Parents come before their children, because their keys are shorter.
    let mut nodes: Vec<NodeRecord> = remembered.nodes.into_values().collect();
    nodes.sort_by(|a, b| a.key.len().cmp(&b.key.len()).then_with(|| a.key.cmp(&b.key)));
    for record in nodes {
        if record.content && !cache.has(record.ino) {
            // Only a power failure causes this, and only for data without an fsync. Either the record reached the disk
            // and the copy did not, or the copy was deleted and the record of that did not reach the disk. The state in
            // the bucket is authoritative again.
            tracing::warn!(key = record.key, "lost the changes of a file that was not fsynced");
            continue;
        }
        restore_node(core, cache, settings, record)?;
    }
    for record in remembered.opened.into_values() {
        restore_opened(core, settings, record)?;
    }
    for key in remembered.deletions {
        core.plan_deletion(key, Duration::ZERO);
    }
    Ok(())
}

fn restore_node(core: &mut Core, cache: &Cache, settings: &Settings, record: NodeRecord) -> Result<(), FsError> {
    let (above, last) = record.key.rsplit_once('/').unwrap_or(("", &record.key));
    let Some(name) = name::decode(last) else { return Err(FsError::Invalid) };
    let parent = ensure_directory(core, settings, above)?;
    let mut attributes = record.attributes;
    let body = match record.kind {
        Kind::Directory => Body::Directory(Default::default()),
        Kind::Symlink => Body::Symlink(record.target.unwrap_or_default()),
        Kind::File if record.content => {
            let stat = cache.open_copy(record.ino)?.metadata();
            let stat = stat.map_err(|source| FsError::Local { what: "look at", source })?;
            if stat.len() != record.size {
                // It was written after the last record, so the copy is newer.
                attributes.mtime = stat.modified().unwrap_or(attributes.mtime);
            }
            tracing::debug!(key = record.key, size = stat.size(), "restored a file that was not uploaded yet");
            Body::File(FileBody { size: stat.len(), local: true, ..FileBody::default() })
        }
        Kind::File => Body::File(FileBody { size: record.size, ..FileBody::default() }),
    };
    if let Some(old) = core.tree.child(parent, &name)? {
        // Only directories that were created above can be here.
        if core.tree.get(old)?.kind() != Kind::Directory || record.kind != Kind::Directory {
            return Err(FsError::Exists);
        }
        core.tree.get_mut(old)?.attributes = attributes;
        return core.mark(old, false, Duration::ZERO);
    }
    let mut node = core.tree.blank(record.ino, body, attributes);
    node.known = record.known;
    node.remote = record.remote;
    // A write may have been in progress when the process ended.
    node.attempted = Some(if record.kind == Kind::Directory { record.key.clone() + "/" } else { record.key.clone() });
    core.tree.attach(node, parent, name)?;
    core.mark(record.ino, record.content, Duration::ZERO)?;
    core.tree.lend(record.ino);
    Ok(())
}

/// A file that was only read. It gets its number back, unless something else has its place now.
fn restore_opened(core: &mut Core, settings: &Settings, record: NodeRecord) -> Result<(), FsError> {
    let (above, last) = record.key.rsplit_once('/').unwrap_or(("", &record.key));
    let Some(name) = name::decode(last) else { return Err(FsError::Invalid) };
    if core.tree.get(record.ino).is_ok() {
        return Ok(());
    }
    let Ok(parent) = ensure_directory(core, settings, above) else { return Ok(()) };
    if core.tree.child(parent, &name)?.is_some() {
        return Ok(());
    }
    let body = Body::File(FileBody { size: record.size, ..FileBody::default() });
    let mut node = core.tree.blank(record.ino, body, record.attributes);
    node.known = record.known;
    node.remote = record.remote;
    core.tree.attach(node, parent, name)
}

/// The directory at a key. What the journal does not know about it will be requested from the store.
fn ensure_directory(core: &mut Core, settings: &Settings, key: &str) -> Result<Ino, FsError> {
    let mut at = ROOT;
    for part in key.split('/').filter(|part| !part.is_empty()) {
        let name = name::decode(part).ok_or(FsError::Invalid)?;
        at = match core.tree.child(at, &name)? {
            Some(ino) => ino,
            None => {
                let ino = core.tree.next_ino();
                let attributes = Attributes {
                    mode: settings.dir_mode,
                    uid: 0,
                    gid: 0,
                    mtime: SystemTime::UNIX_EPOCH,
                    xattrs: Default::default(),
                };
                let node = core.tree.blank(ino, Body::Directory(Default::default()), attributes);
                core.tree.attach(node, at, name)?;
                ino
            }
        };
    }
    Ok(at)
}
