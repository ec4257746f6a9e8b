//! The pipes and terminals from which the guest reads output, for as long as it reads from them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use isopod_wire::checkpoint::Connection;

use crate::connection;
use crate::logs::ProcessLog;
use crate::process::Process;
use crate::process::pump::{Pipe, WeakPipe, push, read_now};
use crate::stdio::Source;

/// More than any pipe or terminal holds. Reached only if a process that should be stopped prints.
const MAX_DRAIN: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// Added by whoever starts a pump; those that are closed are dropped then.
    all: Mutex<Vec<Entry>>,
}

/// Holds nothing open.
#[derive(Debug)]
struct Entry {
    pipe: WeakPipe,
    source: Source,
    pid: u32,
    /// None for what a process of an earlier guest has left.
    process: Option<Weak<Process>>,
    log: Weak<ProcessLog>,
}

/// A pipe or terminal that is open now.
#[derive(Debug)]
pub(super) struct OpenOutput {
    pub(super) pipe: Pipe,
    pub(super) source: Source,
    pub(super) pid: u32,
    /// None if the output belongs to no process any more: the main process has ended, and its children print.
    pub(super) process: Option<Arc<Process>>,
    log: Arc<ProcessLog>,
}

impl Outputs {
    pub(super) fn add(&self, process: &Arc<Process>, pipes: &[(Pipe, Source)]) {
        self.add_all(pipes.iter().map(|(pipe, source)| Entry {
            pipe: pipe.downgrade(),
            source: *source,
            pid: process.pid_number(),
            process: Some(Arc::downgrade(process)),
            log: Arc::downgrade(&process.log),
        }));
    }

    pub(super) fn add_leftover(&self, pipe: &Pipe, source: Source, pid: u32, log: &Arc<ProcessLog>) {
        self.add_all([Entry { pipe: pipe.downgrade(), source, pid, process: None, log: Arc::downgrade(log) }]);
    }

    fn add_all(&self, new: impl IntoIterator<Item = Entry>) {
        let mut all = self.entries();
        all.retain(|entry| entry.pipe.upgrade().is_some());
        all.extend(new);
    }

    pub(super) fn open(&self) -> Vec<OpenOutput> {
        self.entries().iter().filter_map(Entry::open).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn open(&self) -> Option<OpenOutput> {
        let process = self.process.as_ref().and_then(Weak::upgrade);
        Some(OpenOutput {
            pipe: self.pipe.upgrade()?,
            source: self.source,
            pid: self.pid,
            process: process.filter(|process| process.state().ending.is_none()),
            log: self.log.upgrade()?,
        })
    }
}

impl OpenOutput {
    pub(super) fn connection(&self) -> rustix::io::Result<Connection> {
        match self.process.as_ref().and_then(|process| process.terminal) {
            Some(terminal) => Ok(terminal.connection),
            None => connection::of_pipe(self.pipe.fd()),
        }
    }

    /// Takes what was printed so far, as the pump would, but also if a slow reader holds the process back: nothing is lost by
    /// that, and the ring grows by no more than a pipe holds.
    pub(super) fn drain(&self) {
        let mut left = MAX_DRAIN;
        while left > 0 {
            match read_now(self.pipe.fd(), left, |data| self.take(data)) {
                Ok(n) if n > 0 => left = left.saturating_sub(n),
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    fn take(&self, data: &[u8]) {
        match &self.process {
            Some(process) => push(process, self.source, data),
            None => self.log.push(self.source, data),
        }
    }
}
