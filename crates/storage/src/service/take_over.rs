//! Takes over the mounts of an earlier daemon, whose connections the supervisor kept.
//!
//! No mount is given up while the kernel has it, so pending calls are answered as soon as possible. Failures are
//! retried with growing pauses. Several mounts are taken over at once, so that they do not wait for each other.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::Semaphore;

use super::message::KeptMount;
use super::supervision::Inherited;
use super::worker::{Served, Worker, WorkerError, view};
use crate::daemon::ServeError;
use crate::fuse::Session;

const MAX_CONCURRENT: usize = 16;
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);

impl Worker {
    /// Opens the store that an earlier daemon had open, and starts to take over its mounts. They count as served from
    /// now on, so that nothing mounts them again.
    pub(super) fn inherit(self: &Arc<Self>, inherited: Inherited) -> Result<(), WorkerError> {
        let Some(settings) = inherited.settings else { return Ok(()) };
        let open = self.open_store(settings).map_err(|refusal| WorkerError::TakeOver(refusal.message))?;
        let mut names = Vec::new();
        {
            let mut state = self.state();
            state.open = Some(open);
            for (KeptMount { name, mount }, fds) in inherited.mounts {
                let mut fds = fds.into_iter();
                let Some(connection) = fds.next() else { continue };
                let aborter = fds.next().map(File::from);
                names.push(name.clone());
                state.served.insert(name, Served { session: None, connection, mount, aborter });
            }
        }
        let turns = Arc::new(Semaphore::new(MAX_CONCURRENT));
        for name in names {
            let (worker, turns) = (Arc::clone(self), Arc::clone(&turns));
            self.runtime.spawn(async move { worker.take_over(&name, &turns).await });
        }
        Ok(())
    }

    async fn take_over(&self, name: &str, turns: &Semaphore) {
        let mut pause = MIN_PAUSE;
        loop {
            let turn = turns.acquire().await;
            match self.try_take_over(name).await {
                Ok(Some(session)) => return self.taken(name, session),
                // The mount was ended in the meantime.
                Ok(None) => return,
                Err(_) if self.is_gone(name) => {
                    tracing::info!(name, "a mount was removed before it was taken over");
                    return self.end(name);
                }
                Err(error) => tracing::warn!(%error, name, ?pause, "could not take over a mount yet; will retry"),
            }
            drop(turn);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn try_take_over(&self, name: &str) -> Result<Option<Session>, TakeOverError> {
        let (fd, view) = {
            let state = self.state();
            let Some(served) = state.served.get(name) else { return Ok(None) };
            (served.connection.try_clone().map_err(TakeOverError::Descriptor)?, view(&served.mount))
        };
        let daemon = self.daemon().map_err(|refusal| TakeOverError::NotOpen(refusal.message))?;
        Ok(Some(daemon.take_over(fd, &view).await?))
    }

    /// Whether the kernel has removed the mount. Until then, a program may be waiting for an answer.
    fn is_gone(&self, name: &str) -> bool {
        self.state().served.get(name).is_some_and(|served| is_disconnected(&served.connection))
    }

    fn taken(&self, name: &str, session: Session) {
        let surplus = match self.state().served.get_mut(name) {
            Some(served) => served.session.replace(session),
            None => Some(session),
        };
        if let Some(surplus) = surplus {
            surplus.stop();
        }
    }
}

/// Why a mount is not taken over yet.
#[derive(Debug, thiserror::Error)]
enum TakeOverError {
    #[error("no store is open: {0}")]
    NotOpen(String),
    #[error("could not duplicate its connection")]
    Descriptor(#[source] std::io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
}

fn is_disconnected(connection: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}
