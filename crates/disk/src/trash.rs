//! Removed areas, which wait here until a background thread has deleted them.
//!
//! Moving an area into the trash takes microseconds, but deleting 100,000 files takes much longer. What is in the trash
//! when the process ends is deleted after the next start.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::folder;
use super::tree::{self, Removal};

/// Called for each tree in the trash before and after it is deleted. `after` gets the value that `before` returned.
pub(super) trait DeletionHook: Send + Sync + 'static {
    /// What the tree holds besides its files, such as a project id.
    fn before(&self, trash: BorrowedFd<'_>, name: &CStr) -> Option<u32>;
    /// Releases what the tree held. The tree is deleted.
    fn after(&self, held: u32);
}

/// For trees that hold nothing besides their files.
pub(super) struct NoHook;

impl DeletionHook for NoHook {
    fn before(&self, _: BorrowedFd<'_>, _: &CStr) -> Option<u32> {
        None
    }

    fn after(&self, _: u32) {}
}

/// The trash directory and the thread that empties it. The thread ends when this is dropped.
pub(super) struct Trash {
    directory: Arc<OwnedFd>,
    hook: Arc<dyn DeletionHook>,
    count: AtomicU64,
    stop: Arc<AtomicBool>,
    /// Wakes the thread. `None` only during the drop.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Trash {
    /// Starts the thread, which first deletes what is already there.
    pub(super) fn start(directory: OwnedFd, hook: Arc<dyn DeletionHook>) -> io::Result<Self> {
        let (wake, woken) = channel();
        let (directory, stop) = (Arc::new(directory), Arc::new(AtomicBool::new(false)));
        let emptying = (directory.clone(), hook.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("disk-trash".to_owned())
            .spawn(move || empty_when_woken(&emptying.0, &*emptying.1, &emptying.2, &woken))?;
        // The channel is new and its receiver is in the thread, so this cannot fail before the thread ends.
        wake.send(()).ok();
        Ok(Self { directory, hook, count: AtomicU64::new(0), stop, wake: Some(wake), thread: Some(thread) })
    }

    /// Moves `name` from `parent` into the trash, in one step.
    pub(super) fn take(&self, parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        loop {
            let count = self.count.fetch_add(1, Ordering::Relaxed);
            let new_name = format!("{name}-{}-{count}", std::process::id());
            match rustix::fs::renameat_with(parent, name, &*self.directory, &new_name, RenameFlags::NOREPLACE) {
                Ok(()) => break,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        if let Some(wake) = &self.wake {
            // If the thread has ended, the next start empties the trash.
            wake.send(()).ok();
        }
        Ok(())
    }

    /// Deletes everything now, on the calling thread as well. Returns the number of trees that could not be deleted.
    pub(super) fn empty(&self) -> Result<usize, Errno> {
        empty(&self.directory, &*self.hook, &self.stop)
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // The thread panics only because of a bug, and the panic has been reported.
            thread.join().ok();
        }
    }
}

/// Deletes the content of `trash` below `root`, if there is one, before that directory goes out of use. What cannot be
/// deleted stays, and a warning is logged for it.
pub(super) fn empty_without_thread(root: &OwnedFd) -> Result<(), Errno> {
    match folder::open_below(root, "trash") {
        Ok(trash) => empty(&trash, &NoHook, &AtomicBool::new(false)).map(drop),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn empty_when_woken(directory: &OwnedFd, hook: &dyn DeletionHook, stop: &AtomicBool, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        while woken.try_recv().is_ok() {}
        match empty(directory, hook, stop) {
            Ok(0) => {}
            Ok(left) => tracing::warn!(left, "could not delete some removed areas; will retry later"),
            Err(errno) => tracing::warn!(%errno, "could not read the trash directory"),
        }
    }
}

/// Repeats until nothing more can be deleted, because a tree with subvolumes inside leaves them beside it.
fn empty(directory: &OwnedFd, hook: &dyn DeletionHook, stop: &AtomicBool) -> Result<usize, Errno> {
    let mut stuck: Vec<CString> = Vec::new();
    loop {
        let mut names = tree::names(directory)?;
        names.retain(|name| !stuck.contains(name));
        if names.is_empty() || stop.load(Ordering::Relaxed) {
            return Ok(stuck.len());
        }
        for name in names {
            if !empty_one(directory, &name, hook, stop) {
                stuck.push(name);
            }
        }
    }
}

fn empty_one(directory: &OwnedFd, name: &CStr, hook: &dyn DeletionHook, stop: &AtomicBool) -> bool {
    let held = hook.before(directory.as_fd(), name);
    match tree::remove(directory, name, stop) {
        Ok(Removal::Done) => {
            if let Some(held) = held {
                hook.after(held);
            }
            true
        }
        Ok(Removal::Stopped) => true,
        // Two threads may empty the trash at once. What the other one deleted is not stuck.
        Err(Errno::NOENT) => true,
        Err(errno) => {
            tracing::warn!(%errno, tree = ?name, "could not delete a removed area");
            false
        }
    }
}
