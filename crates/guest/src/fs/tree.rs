//! Watches a directory or a whole tree with inotify. Events have paths relative to the watched directory.
//!
//! The kernel watches single directories. For a tree, every directory gets a watch. New directories are watched as soon as
//! they are seen; entries that were created in them before that are reported as created.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::filesystem::{EventType, FilesystemEvent};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::fs::entry::entry_info;
use crate::users::Names;

/// A watched directory, with everything below it if recursive.
#[derive(Debug)]
pub(crate) struct WatchedTree {
    inotify: Arc<OwnedFd>,
    root: PathBuf,
    recursive: bool,
    include_entry: bool,
    /// Watch descriptors and their directories relative to the root.
    dirs: HashMap<i32, PathBuf>,
    /// Paths that a scan found and reported as created. The kernel may report them again.
    found: HashSet<PathBuf>,
}

/// Why a watch cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("too many changes at once, some events were lost")]
    Overflow,
    #[error("cannot read events: {0}")]
    Read(#[source] io::Error),
}

/// The events of one read of the kernel's queue.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) events: Vec<FilesystemEvent>,
    /// Whether the queue was empty afterwards.
    pub(crate) drained: bool,
}

/// An event of the kernel.
struct Change {
    directory: PathBuf,
    name: Option<PathBuf>,
    flags: ReadFlags,
}

impl WatchedTree {
    pub(crate) fn new(root: PathBuf, recursive: bool, include_entry: bool) -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        let mut tree = Self { inotify, root, recursive, include_entry, dirs: HashMap::new(), found: HashSet::new() };
        tree.watch(PathBuf::new())?;
        if recursive {
            tree.watch_below(PathBuf::new(), None);
        }
        Ok(tree)
    }

    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.inotify)
    }

    /// Reads the queued events. May block on the file system, but not on the kernel's queue.
    pub(crate) fn read(&mut self) -> Result<Batch, TreeError> {
        let mut events = Vec::new();
        let (changes, drained) = self.read_changes()?;
        for change in changes {
            self.apply(change, &mut events);
        }
        if self.include_entry && !events.is_empty() {
            let names = Names::read();
            for event in &mut events {
                let path = self.root.join(&event.name);
                event.entry = MessageField::from(entry_info(&path, &names).ok());
            }
        }
        Ok(Batch { events, drained })
    }

    fn read_changes(&mut self) -> Result<(Vec<Change>, bool), TreeError> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(&*self.inotify, &mut buffer);
        let mut changes = Vec::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => return Err(TreeError::Overflow),
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    self.dirs.remove(&event.wd());
                }
                Ok(event) => {
                    let name = event
                        .file_name()
                        .map(|name| Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned());
                    if let Some(directory) = self.dirs.get(&event.wd()) {
                        changes.push(Change { directory: directory.clone(), name, flags: event.events() });
                    }
                }
                Err(Errno::AGAIN) => return Ok((changes, true)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(TreeError::Read(error.into())),
            }
            // Return after each full buffer: a tree that changes faster than it is read must not occupy this thread.
            if reader.is_buffer_empty() && !changes.is_empty() {
                return Ok((changes, false));
            }
        }
    }

    fn apply(&mut self, change: Change, events: &mut Vec<FilesystemEvent>) {
        let Change { directory, name, flags } = change;
        let path = match name {
            Some(name) => directory.join(name),
            // The parent directory reports these events, except for the root.
            None if directory.as_os_str().is_empty() => PathBuf::from("."),
            None => return,
        };
        let is_dir = flags.contains(ReadFlags::ISDIR);
        if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            self.found.remove(&path);
        }
        if is_dir && flags.contains(ReadFlags::MOVED_FROM) {
            self.unwatch_below(&path);
        }
        let already_reported = flags.contains(ReadFlags::CREATE) && self.found.remove(&path);
        for kind in kinds(flags).filter(|_| !already_reported) {
            events.push(event(&path, kind));
        }
        let appeared = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        if self.recursive && is_dir && appeared && !already_reported && self.watch(path.clone()).is_ok() {
            // The contents of a directory that was moved in were not created here.
            let report = flags.contains(ReadFlags::CREATE).then_some(events);
            self.watch_below(path, report);
        }
    }

    fn watch(&mut self, relative: PathBuf) -> io::Result<()> {
        let mut flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        if relative.as_os_str().is_empty() {
            flags |= WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        } else {
            flags |= WatchFlags::DONT_FOLLOW;
        }
        let wd = inotify::add_watch(&*self.inotify, self.root.join(&relative), flags)?;
        self.dirs.insert(wd, relative);
        Ok(())
    }

    /// Watches every directory below `top`. Adds an event for each entry it finds if `report` is given.
    fn watch_below(&mut self, top: PathBuf, mut report: Option<&mut Vec<FilesystemEvent>>) {
        let mut todo = vec![top];
        while let Some(dir) = todo.pop() {
            let Ok(entries) = std::fs::read_dir(self.root.join(&dir)) else { continue };
            for entry in entries.flatten() {
                let path = dir.join(entry.file_name());
                if let Some(events) = report.as_deref_mut() {
                    events.push(event(&path, EventType::EVENT_TYPE_CREATE));
                    self.found.insert(path.clone());
                }
                // Skip a directory that cannot be watched: it has vanished, or there are no watches left.
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) && self.watch(path.clone()).is_ok() {
                    todo.push(path);
                }
            }
        }
    }

    fn unwatch_below(&mut self, top: &Path) {
        let moved: Vec<i32> = self.dirs.iter().filter(|(_, dir)| dir.starts_with(top)).map(|(wd, _)| *wd).collect();
        for wd in moved {
            let _ = inotify::remove_watch(&*self.inotify, wd);
            self.dirs.remove(&wd);
        }
    }
}

fn kinds(flags: ReadFlags) -> impl Iterator<Item = EventType> {
    let table = [
        (ReadFlags::CREATE | ReadFlags::MOVED_TO, EventType::EVENT_TYPE_CREATE),
        (ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF, EventType::EVENT_TYPE_RENAME),
        (ReadFlags::ATTRIB, EventType::EVENT_TYPE_CHMOD),
        (ReadFlags::MODIFY, EventType::EVENT_TYPE_WRITE),
        (ReadFlags::DELETE | ReadFlags::DELETE_SELF, EventType::EVENT_TYPE_REMOVE),
    ];
    table.into_iter().filter(move |(mask, _)| flags.intersects(*mask)).map(|(_, kind)| kind)
}

fn event(path: &Path, kind: EventType) -> FilesystemEvent {
    FilesystemEvent { name: path.to_string_lossy().into_owned(), r#type: kind.into(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(tree: &mut WatchedTree) -> Vec<(String, EventType)> {
        let mut all = Vec::new();
        loop {
            let batch = tree.read().unwrap();
            all.extend(batch.events.into_iter().map(|event| (event.name, event.r#type.as_known().unwrap())));
            if batch.drained {
                return all;
            }
        }
    }

    #[test]
    fn new_directories_are_watched_and_nothing_is_reported_twice() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = WatchedTree::new(dir.path().to_owned(), true, false).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "x").unwrap();
        let first = reported(&mut tree);
        for path in ["a", "a/b", "a/b/file"] {
            let created = (path.to_owned(), EventType::EVENT_TYPE_CREATE);
            assert_eq!(first.iter().filter(|event| **event == created).count(), 1, "{first:?}");
        }
        std::fs::write(dir.path().join("a/b/file"), "y").unwrap();
        assert!(reported(&mut tree).contains(&("a/b/file".to_owned(), EventType::EVENT_TYPE_WRITE)));
        std::fs::rename(dir.path().join("a/b"), dir.path().join("c")).unwrap();
        std::fs::write(dir.path().join("c/late"), "").unwrap();
        let moved = reported(&mut tree);
        assert!(moved.contains(&("a/b".to_owned(), EventType::EVENT_TYPE_RENAME)), "{moved:?}");
        assert!(moved.contains(&("c".to_owned(), EventType::EVENT_TYPE_CREATE)), "{moved:?}");
    }

    #[test]
    fn without_recursion_only_the_directory_itself_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let mut tree = WatchedTree::new(dir.path().to_owned(), false, true).unwrap();
        std::fs::write(dir.path().join("sub/file"), "").unwrap();
        assert!(reported(&mut tree).iter().all(|(name, _)| name == "sub"));
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::fs::remove_file(dir.path().join("file")).unwrap();
        let events = reported(&mut tree);
        assert_eq!(events.first(), Some(&("file".to_owned(), EventType::EVENT_TYPE_CREATE)));
        assert_eq!(events.last(), Some(&("file".to_owned(), EventType::EVENT_TYPE_REMOVE)));
    }
}
