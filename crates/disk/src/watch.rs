//! Keeps the image at the right size, on a thread of its own.
//!
//! Every process that has the disk open watches it, because any of them may be the only one. The setup lock lets one
//! process at a time make changes. While no process watches, the image keeps its size: the free space in it can be
//! used, and after that writers get ENOSPC.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::DiskError;
use super::image::Image;
use super::lock::SetupLock;
use super::size::ImageSpace;

/// The pause between two checks while something is written, and while nothing is.
const BUSY_PAUSE: Duration = Duration::from_millis(25);
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// How long there must be too much free space before some of it is given back.
const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// The thread. It ends when this is dropped.
pub(super) struct Watch {
    /// Nothing is ever sent. `None` only during the drop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(state_dir: &std::path::Path, image: &Image, max_size: u64) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let mut watcher = Watcher {
            state_dir: state_dir.to_owned(),
            image: image.clone(),
            max_size,
            last: None,
            too_large_since: None,
            is_full: false,
        };
        let thread =
            std::thread::Builder::new().name("disk-watch".to_owned()).spawn(move || watcher.watch_until(&stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread panics only because of a bug, and the panic has been reported.
            thread.join().ok();
        }
    }
}

struct Watcher {
    state_dir: std::path::PathBuf,
    image: Image,
    max_size: u64,
    /// The space at the previous check.
    last: Option<ImageSpace>,
    too_large_since: Option<Instant>,
    /// Whether the warning about missing space was logged.
    is_full: bool,
}

impl Watcher {
    fn watch_until(&mut self, stopped: &Receiver<()>) {
        let mut pause = Duration::ZERO;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            // Another process may be destroying the disk. The next operation on it will fail with the reason.
            pause = match self.image.space(self.max_size) {
                Ok(space) => self.look(space),
                Err(_) => IDLE_PAUSE,
            };
        }
    }

    /// Reacts to the current space, and returns the time until the next check.
    fn look(&mut self, space: ImageSpace) -> Duration {
        let is_same = self.last.replace(space) == Some(space);
        let wanted = space.wanted_size();
        if wanted < space.size {
            let since = *self.too_large_since.get_or_insert_with(Instant::now);
            if since.elapsed() > SHRINK_AFTER {
                self.too_large_since = None;
                self.resize(wanted);
            }
        } else {
            self.too_large_since = None;
        }
        if wanted > space.size {
            self.resize(wanted);
        }
        self.tell_if_full(&space);
        if is_same { IDLE_PAUSE } else { BUSY_PAUSE }
    }

    fn resize(&self, size: u64) {
        if let Err(error) = self.try_resize(size) {
            tracing::debug!(error = &error as &dyn std::error::Error, size, "could not resize the disk image");
        }
    }

    fn try_resize(&self, size: u64) -> Result<(), DiskError> {
        let Some(_lock) = SetupLock::try_acquire(&self.state_dir)? else { return Ok(()) };
        // The process that held the lock before us may have resized the image.
        let is_stale = self.image.space(self.max_size).is_ok_and(|space| space.wanted_size() != size);
        if is_stale {
            return Ok(());
        }
        self.image.resize(size).map_err(|source| DiskError::Path {
            doing: "resize",
            path: self.state_dir.join("disk.btrfs"),
            source,
        })
    }

    fn tell_if_full(&mut self, space: &ImageSpace) {
        const LOW: u64 = 64 << 20;
        let is_full = space.free < LOW && space.growable() < LOW;
        if is_full && !self.is_full {
            let (free, reserve) = (space.host.free >> 20, space.host.reserve() >> 20);
            tracing::warn!(
                "sandboxes cannot write more data: {free} MiB are free on the state directory's disk, and {reserve} MiB must stay free; \
                 free space there, or end sandboxes"
            );
        }
        self.is_full = is_full;
    }
}
