//! Sandboxes that are made before somebody asks.
//!
//! Two shelves for the template and limits that most ask for: *ready* ones, whose guest listens, and *prepared* ones,
//! whose first process waits for the word to become the guest. Workers keep both filled. What is asked for with other
//! limits takes a prepared one; another template is made from nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_wire::node::Shelf;
use isopod_wire::{ExecutionId, Limits};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::blank::{Blank, MakeError, Prepared, Workshop};
use crate::guest_request;
use crate::node::random_execution_id;
use crate::start::START_PATIENCE;
use crate::template::Template;

/// How many to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// With a guest that listens.
    pub ready: usize,
    /// Without a guest.
    pub prepared: usize,
}

impl PoolSize {
    /// None: everything is made when it is asked for.
    pub const NONE: Self = Self { ready: 0, prepared: 0 };
}

/// After this many failures in a row a worker waits for the next request instead of trying on.
const PATIENCE: u32 = 3;
/// How long a worker rests after a failure.
const BACKOFF: Duration = Duration::from_millis(200);
/// Most of the work is waiting: a move between cgroups alone takes a grace period of the kernel, which many share.
const WORKERS: usize = 4;

/// While the shelves are well filled, how long workers leave the CPUs to whoever has just been given a sandbox.
const REST: Duration = Duration::from_millis(20);

/// How long an interpreter may take to come from its zygote, and how often to look.
const PARKING_DEADLINE: Duration = Duration::from_secs(10);
const PARKING_POLL: Duration = Duration::from_millis(5);

/// The shelves and their workers.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Taken by whoever closes the pool.
    workers: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    workshop: Arc<Workshop>,
    size: PoolSize,
    limits: Limits,
    shelves: Mutex<Shelves>,
    wanted: Notify,
    /// How many owners wait for one that is made for them alone.
    waiting: AtomicUsize,
}

/// With more owners waiting than this, workers leave the CPUs to them.
const CROWD: usize = 4;

/// An owner that waits for a sandbox that the shelves did not have.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.wanted.notify_waiters();
    }
}

#[derive(Debug, Default)]
struct Shelves {
    /// The template that is kept ready now.
    template: Option<Arc<Template>>,
    ready: VecDeque<Blank>,
    prepared: VecDeque<Prepared>,
    /// How many are being made, so that two workers do not make the same one.
    making_ready: usize,
    making_prepared: usize,
    closed: bool,
}

enum Job {
    Launch(Box<Prepared>),
    Prepare(Arc<Template>),
}

impl Pool {
    /// Empty shelves. Nothing is made before [`Pool::start`].
    pub(crate) fn new(workshop: Arc<Workshop>, template: Arc<Template>, limits: Limits, size: PoolSize) -> Self {
        let shelves = Mutex::new(Shelves { template: Some(template), ..Shelves::default() });
        let shared =
            Arc::new(Shared { workshop, size, limits, shelves, wanted: Notify::new(), waiting: AtomicUsize::new(0) });
        Self { shared, workers: Mutex::default() }
    }

    /// Begins to fill the shelves, once. Not before the sandboxes of an earlier process are adopted: a blank in the making
    /// looks like one that a killed process left.
    pub(crate) fn start(&self) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.is_empty() && self.shared.size != PoolSize::NONE && !self.shared.shelves().closed {
            workers.extend((0..WORKERS).map(|_| tokio::spawn(Arc::clone(&self.shared).work())));
        }
    }

    /// A ready one, if the shelf has one of this kind.
    pub(crate) fn take_ready(&self, generation: &str, limits: &Limits) -> Option<Blank> {
        // The disk limit is set when it is handed over.
        if (Limits { disk: self.shared.limits.disk, ..*limits }) != self.shared.limits {
            return None;
        }
        loop {
            let blank = {
                let mut shelves = self.shared.shelves();
                if !shelves.is_of(generation) {
                    return None;
                }
                shelves.ready.pop_front()
            };
            match blank? {
                blank if blank.is_alive() => return Some(blank),
                // Somebody killed it while it waited.
                dead => self.shared.workshop.discard_blank(dead),
            }
        }
    }

    /// A prepared one, if the shelf has one of this template.
    pub(crate) fn take_prepared(&self, generation: &str) -> Option<Prepared> {
        let mut shelves = self.shared.shelves();
        if !shelves.is_of(generation) {
            return None;
        }
        shelves.prepared.pop_front()
    }

    /// Tells the workers, until it is dropped, that somebody waits.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.shared)
    }

    /// Lets the workers fill what was taken. Whoever takes calls it when the taken one has been handed over, so that the
    /// work for the next does not hold up this one.
    pub(crate) fn refill(&self) {
        self.shared.wanted.notify_waiters();
    }

    /// Keeps another template ready from now on and removes what is left of the old one.
    pub(crate) fn replace_template(&self, template: Arc<Template>) {
        let (ready, prepared) = {
            let mut shelves = self.shared.shelves();
            shelves.template = Some(template);
            (std::mem::take(&mut shelves.ready), std::mem::take(&mut shelves.prepared))
        };
        self.shared.discard(ready, prepared);
        self.shared.wanted.notify_waiters();
    }

    /// How many are on the shelves.
    pub(crate) fn filled(&self) -> PoolSize {
        let shelves = self.shared.shelves();
        PoolSize { ready: shelves.ready.len(), prepared: shelves.prepared.len() }
    }

    /// The same beside what there should be, under the template's name.
    pub(crate) fn shelf(&self, template: &str) -> Shelf {
        let (filled, wanted) = (self.filled(), self.shared.size);
        Shelf {
            template: template.to_owned(),
            ready: filled.ready,
            prepared: filled.prepared,
            wanted_ready: wanted.ready,
            wanted_prepared: wanted.prepared,
        }
    }

    /// Ends the workers and removes everything on the shelves.
    pub(crate) async fn close(&self) {
        self.shared.shelves().closed = true;
        self.shared.wanted.notify_waiters();
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A worker that panicked has nothing on its hands that the next sweep would not find.
            let _ = worker.await;
        }
        let shared = Arc::clone(&self.shared);
        let emptied = tokio::task::spawn_blocking(move || {
            let (ready, prepared) = {
                let mut shelves = shared.shelves();
                (std::mem::take(&mut shelves.ready), std::mem::take(&mut shelves.prepared))
            };
            shared.discard(ready, prepared);
        });
        let _ = emptied.await;
    }
}

impl Drop for Pool {
    /// Without this, workers that wait for something to do would keep the state directory for ever.
    fn drop(&mut self) {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        workers.iter().for_each(JoinHandle::abort);
    }
}

impl Shelves {
    fn is_of(&self, generation: &str) -> bool {
        self.template.as_ref().is_some_and(|template| template.generation() == generation)
    }
}

impl Shared {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn discard(&self, ready: VecDeque<Blank>, prepared: VecDeque<Prepared>) {
        ready.into_iter().for_each(|blank| self.workshop.discard_blank(blank));
        prepared.into_iter().for_each(|prepared| self.workshop.discard_prepared(prepared));
    }

    async fn work(self: Arc<Self>) {
        let mut failures = 0;
        loop {
            let wanted = self.wanted.notified();
            if self.shelves().closed {
                return;
            }
            match self.next_job() {
                Some(job) if failures < PATIENCE => {
                    let shared = Arc::clone(&self);
                    let result = tokio::task::spawn_blocking(move || shared.run(job)).await;
                    failures = if matches!(result, Ok(Ok(()))) { 0 } else { failures + 1 };
                    if failures > 0 {
                        tokio::time::sleep(BACKOFF).await;
                    }
                }
                job => {
                    if let Some(job) = job {
                        self.put_back(job);
                    }
                    wanted.await;
                    failures = 0;
                    if !self.is_low() {
                        tokio::time::sleep(REST).await;
                    }
                }
            }
        }
    }

    /// Whether a shelf is less than half full.
    fn is_low(&self) -> bool {
        let shelves = self.shelves();
        2 * shelves.ready.len() < self.size.ready || 2 * shelves.prepared.len() < self.size.prepared
    }

    /// Ready ones first, made of prepared ones where there are.
    fn next_job(&self) -> Option<Job> {
        if self.waiting.load(Ordering::Relaxed) > CROWD {
            return None;
        }
        let mut shelves = self.shelves();
        let template = shelves.template.clone()?;
        if shelves.ready.len() + shelves.making_ready < self.size.ready
            && let Some(prepared) = shelves.prepared.pop_front()
        {
            shelves.making_ready += 1;
            return Some(Job::Launch(Box::new(prepared)));
        }
        let missing_ready = self.size.ready.saturating_sub(shelves.ready.len() + shelves.making_ready);
        if shelves.prepared.len() + shelves.making_prepared < self.size.prepared + missing_ready {
            shelves.making_prepared += 1;
            return Some(Job::Prepare(template));
        }
        None
    }

    fn put_back(&self, job: Job) {
        let mut shelves = self.shelves();
        match job {
            Job::Launch(prepared) => {
                shelves.making_ready -= 1;
                shelves.prepared.push_back(*prepared);
            }
            Job::Prepare(_) => shelves.making_prepared -= 1,
        }
    }

    fn run(&self, job: Job) -> Result<(), MakeError> {
        let result = match job {
            Job::Launch(prepared) => {
                let result = self.workshop.launch(*prepared, &self.limits).inspect(wait_until_parked);
                let result = result.inspect(|blank| self.workshop.bring_up(blank, START_PATIENCE));
                self.shelves().making_ready -= 1;
                result.map(|blank| self.shelve_ready(blank))
            }
            Job::Prepare(template) => {
                let execution: ExecutionId = random_execution_id();
                let result = self.workshop.prepare(execution, &template, &self.limits, None);
                self.shelves().making_prepared -= 1;
                result.map(|prepared| self.shelve_prepared(&template, prepared))
            }
        };
        self.wanted.notify_waiters();
        result.inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "could not fill the pool");
        })
    }

    fn shelve_ready(&self, blank: Blank) {
        let rejected = {
            let mut shelves = self.shelves();
            match shelves.is_of(&blank.record.generation) && !shelves.closed {
                true => {
                    shelves.ready.push_back(blank);
                    None
                }
                false => Some(blank),
            }
        };
        rejected.into_iter().for_each(|blank| self.workshop.discard_blank(blank));
    }

    fn shelve_prepared(&self, template: &Template, prepared: Prepared) {
        let rejected = {
            let mut shelves = self.shelves();
            match shelves.is_of(template.generation()) && !shelves.closed {
                true => {
                    shelves.prepared.push_back(prepared);
                    None
                }
                false => Some(prepared),
            }
        };
        rejected.into_iter().for_each(|prepared| self.workshop.discard_prepared(prepared));
    }
}

/// A ready one with an interpreter is ready when that has come and waits for code. One that does not come is no reason to
/// throw the sandbox away: the guest starts its own.
fn wait_until_parked(blank: &Blank) {
    if blank.template.zygote().is_none() {
        return;
    }
    let deadline = Instant::now() + PARKING_DEADLINE;
    while Instant::now() < deadline && blank.is_alive() {
        match guest_request::is_interpreter_parked(&blank.directory) {
            Ok(true) => return,
            Ok(false) => std::thread::sleep(PARKING_POLL),
            Err(error) => return tracing::debug!(%error, "the guest does not tell about its interpreter"),
        }
    }
    tracing::warn!(execution = %blank.record.execution, "no interpreter has come");
}
