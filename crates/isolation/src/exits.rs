//! Waits for the end of many processes at once, on one thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

/// The thread and what it waits for. It ends when this is dropped.
#[derive(Debug)]
pub struct ExitWatcher {
    shared: Arc<Shared>,
    /// A write to it ends the thread.
    stop: OwnedFd,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last_key: u64,
    /// The pidfds stay open while their processes are waited for.
    processes: HashMap<u64, (Arc<OwnedFd>, oneshot::Sender<()>)>,
}

/// Keys of processes start at one.
const STOP_KEY: u64 = 0;

impl ExitWatcher {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP_KEY), EventFlags::IN)?;
        let shared = Arc::new(Shared { epoll, waiting: Mutex::default() });
        let waiter = Arc::clone(&shared);
        thread::Builder::new().name("exits".to_owned()).stack_size(128 << 10).spawn(move || waiter.run())?;
        Ok(Self { shared, stop })
    }

    /// Completes when the process has ended.
    pub fn of(&self, pidfd: Arc<OwnedFd>) -> io::Result<oneshot::Receiver<()>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.shared.waiting();
        waiting.last_key += 1;
        let key = waiting.last_key;
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&self.shared.epoll, &pidfd, EventData::new_u64(key), flags)?;
        waiting.processes.insert(key, (pidfd, sender));
        Ok(receiver)
    }
}

impl Drop for ExitWatcher {
    fn drop(&mut self) {
        // The write cannot block, because nothing else was written to the eventfd.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "can no longer wait for the end of processes");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    STOP_KEY => return,
                    key => self.ended(key),
                }
            }
        }
    }

    fn ended(&self, key: u64) {
        let Some((pidfd, sender)) = self.waiting().processes.remove(&key) else { return };
        // Others may keep the descriptor open. Then closing ours would not remove it from the set.
        let _ = epoll::delete(&self.epoll, &pidfd);
        // The receiver may be gone.
        let _ = sender.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[tokio::test]
    async fn the_end_of_each_process_is_told_once() {
        let exits = ExitWatcher::start().unwrap();
        let mut children: Vec<_> =
            (0..20).map(|_| Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap()).collect();
        let mut receivers = Vec::new();
        for child in &children {
            let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
            receivers.push(exits.of(Arc::new(pidfd)).unwrap());
        }
        assert!(receivers.iter_mut().all(|receiver| receiver.try_recv().is_err()));
        for child in &mut children {
            drop(child.stdin.take());
        }
        for receiver in receivers {
            receiver.await.unwrap();
        }
        assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    }
}
