//! Keeps the image as large as it should be, on a thread of its own.
//!
//! Every process that has the disk open watches, because any of them may be the only one; the setup lock lets one at a
//! time change something. While there is none, the image stays as it is: what is free in it can be written, and then
//! writers get ENOSPC.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::DiskError;
use super::image::Image;
use super::lock::SetupLock;
use super::size::ImageSpace;

/// While something is written, and while nothing is.
const BUSY_PAUSE: Duration = Duration::from_millis(25);
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// How long there must be too much room before some of it is given back.
const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// The thread. It ends when this is dropped.
pub(super) struct Watch {
    /// Never sent on; `None` only while dropping.
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
            // It panics only by a mistake of ours, and has then said so.
            thread.join().ok();
        }
    }
}

struct Watcher {
    state_dir: std::path::PathBuf,
    image: Image,
    max_size: u64,
    /// What was there the last time.
    last: Option<ImageSpace>,
    too_large_since: Option<Instant>,
    /// It was said that there is no more room.
    is_full: bool,
}

impl Watcher {
    fn watch_until(&mut self, stopped: &Receiver<()>) {
        let mut pause = Duration::ZERO;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            // Another process may just destroy it; then whoever uses it next finds out.
            pause = match self.image.space(self.max_size) {
                Ok(space) => self.look(space),
                Err(_) => IDLE_PAUSE,
            };
        }
    }

    /// Acts on what was found, and says when to look again.
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
            tracing::debug!(error = &error as &dyn std::error::Error, size, "the disk image keeps its size");
        }
    }

    fn try_resize(&self, size: u64) -> Result<(), DiskError> {
        let Some(_lock) = SetupLock::try_acquire(&self.state_dir)? else { return Ok(()) };
        // It was another one that had the lock before us.
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
                "sandboxes can write no more: {free} MiB are free on the state directory's disk, and {reserve} MiB must stay free; \
                 make room there, or end sandboxes"
            );
        }
        self.is_full = is_full;
    }
}
