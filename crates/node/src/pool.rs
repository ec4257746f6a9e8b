//! A pool of sandboxes that are created in advance.
//!
//! It has two queues, for the default template and limits: *ready* sandboxes, whose guest listens, and *prepared* ones,
//! whose first process waits to become the guest. Workers keep both filled. A request with other limits takes a
//! prepared sandbox. One with another template starts from scratch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_wire::node::TemplatePoolStatus;
use isopod_wire::{ExecutionId, Limits};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::admission::descriptors_are_low;
use crate::guest_request;
use crate::provision::{Plan, PreparedSandbox, ProvisionError, Provisioner, ReadySandbox};
use crate::record::random_execution_id;
use crate::start::START_TIMEOUT;
use crate::start_image::StartImage;
use crate::template::Template;

/// How many sandboxes to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// With a guest that listens.
    pub ready: usize,
    /// Without a guest.
    pub prepared: usize,
}

impl PoolSize {
    /// Nothing is created in advance.
    pub const NONE: Self = Self { ready: 0, prepared: 0 };
}

/// After this many consecutive failures, a worker waits for the next request.
const MAX_FAILURES: u32 = 3;
/// How long a worker waits after a failure.
const BACKOFF: Duration = Duration::from_millis(200);
/// Most of the work is waiting: a move between cgroups alone takes an RCU grace period, which several moves can share.
const WORKERS: usize = 4;

/// How long workers leave the CPUs to the owner of a sandbox that was just taken, while the queues are well filled.
const REST: Duration = Duration::from_millis(20);

/// How long to wait for an interpreter from its zygote, and how often to check.
const PARKING_DEADLINE: Duration = Duration::from_secs(10);
const PARKING_POLL: Duration = Duration::from_millis(5);

/// The queues and the workers that fill them.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Taken when the pool is closed.
    workers: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    provisioner: Arc<Provisioner>,
    size: PoolSize,
    limits: Limits,
    inventory: Mutex<Inventory>,
    wanted: Notify,
    /// How many owners wait for a sandbox that is created just for them.
    waiting: AtomicUsize,
}

/// If more owners than this wait, workers leave the CPUs to them.
const MAX_WAITING: usize = 4;

/// Counts an owner that waits for a sandbox because the pool had none.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.wanted.notify_waiters();
    }
}

#[derive(Debug, Default)]
struct Inventory {
    /// The template of the sandboxes in the pool.
    template: Option<Arc<Template>>,
    /// What sandboxes of this template start from.
    image: Option<Arc<StartImage>>,
    ready: VecDeque<ReadySandbox>,
    prepared: VecDeque<PreparedSandbox>,
    /// How many are being created, so that workers do not create too many.
    making_ready: usize,
    making_prepared: usize,
    closed: bool,
}

enum Job {
    Launch(Box<PreparedSandbox>),
    Prepare(Arc<Template>, Option<Arc<StartImage>>),
}

impl Pool {
    /// An empty pool. Nothing is created before [`Pool::start`].
    pub(crate) fn new(provisioner: Arc<Provisioner>, template: Arc<Template>, limits: Limits, size: PoolSize) -> Self {
        let inventory = Mutex::new(Inventory { template: Some(template), ..Inventory::default() });
        let shared = Arc::new(Shared {
            provisioner,
            size,
            limits,
            inventory,
            wanted: Notify::new(),
            waiting: AtomicUsize::new(0),
        });
        Self { shared, workers: Mutex::default() }
    }

    /// Starts filling the pool, once. Call it only after the sandboxes of an earlier process are adopted, because a
    /// sandbox that is being created looks like one that a killed process left.
    pub(crate) fn start(&self) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.is_empty() && self.shared.size != PoolSize::NONE && !self.shared.inventory().closed {
            workers.extend((0..WORKERS).map(|_| tokio::spawn(Arc::clone(&self.shared).work())));
        }
    }

    /// Takes a ready sandbox with these limits, if there is one.
    pub(crate) fn take_ready(&self, generation: &str, limits: &Limits) -> Option<ReadySandbox> {
        // The disk limit is set when the sandbox is assigned.
        if (Limits { disk: self.shared.limits.disk, ..*limits }) != self.shared.limits {
            return None;
        }
        loop {
            let sandbox = {
                let mut inventory = self.shared.inventory();
                if !inventory.is_of(generation) {
                    return None;
                }
                inventory.ready.pop_front()
            };
            match sandbox? {
                sandbox if sandbox.is_alive() => return Some(sandbox),
                // It was killed while it waited.
                dead => self.shared.provisioner.discard_ready(dead),
            }
        }
    }

    /// Takes a prepared sandbox of this template that can have these limits, if there is one.
    pub(crate) fn take_prepared(&self, generation: &str, limits: &Limits) -> Option<PreparedSandbox> {
        let mut inventory = self.shared.inventory();
        if !inventory.is_of(generation) {
            return None;
        }
        let fits = |prepared: &PreparedSandbox| prepared.image.as_ref().is_none_or(|image| image.has_limits(limits));
        let at = inventory.prepared.iter().position(fits)?;
        inventory.prepared.remove(at)
    }

    /// The start image for a sandbox with these limits.
    pub(crate) fn image(&self, generation: &str, limits: &Limits) -> Option<Arc<StartImage>> {
        let inventory = self.shared.inventory();
        inventory.image().filter(|image| inventory.is_of(generation) && image.has_limits(limits))
    }

    /// Lets further sandboxes of this generation start from an image.
    pub(crate) fn set_image(&self, generation: &str, image: Arc<StartImage>) {
        let mut inventory = self.shared.inventory();
        if inventory.is_of(generation) && image.has_limits(&self.shared.limits) {
            inventory.image = Some(image);
        }
    }

    /// Tells the workers that an owner waits, until the result is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.shared)
    }

    /// Lets the workers replace what was taken. Call it after the sandbox has been assigned, so that work on the next
    /// one does not delay it.
    pub(crate) fn refill(&self) {
        self.shared.wanted.notify_waiters();
    }

    /// Changes the template of the pool and removes the sandboxes of the old one.
    pub(crate) fn replace_template(&self, template: Arc<Template>) {
        let (ready, prepared) = {
            let mut inventory = self.shared.inventory();
            inventory.template = Some(template);
            inventory.image = None;
            (std::mem::take(&mut inventory.ready), std::mem::take(&mut inventory.prepared))
        };
        self.shared.discard(ready, prepared);
        self.shared.wanted.notify_waiters();
    }

    /// The number of sandboxes in the pool.
    pub(crate) fn filled(&self) -> PoolSize {
        let inventory = self.shared.inventory();
        PoolSize { ready: inventory.ready.len(), prepared: inventory.prepared.len() }
    }

    /// The actual and the wanted sizes, under the template's name.
    pub(crate) fn status(&self, template: &str) -> TemplatePoolStatus {
        let (filled, wanted) = (self.filled(), self.shared.size);
        TemplatePoolStatus {
            template: template.to_owned(),
            ready: filled.ready,
            prepared: filled.prepared,
            wanted_ready: wanted.ready,
            wanted_prepared: wanted.prepared,
        }
    }

    /// Stops the workers and removes all sandboxes of the pool.
    pub(crate) async fn close(&self) {
        self.shared.inventory().closed = true;
        self.shared.wanted.notify_waiters();
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // The next sweep finds whatever a worker that panicked has left.
            let _ = worker.await;
        }
        let shared = Arc::clone(&self.shared);
        let emptied = tokio::task::spawn_blocking(move || {
            let (ready, prepared) = {
                let mut inventory = shared.inventory();
                (std::mem::take(&mut inventory.ready), std::mem::take(&mut inventory.prepared))
            };
            shared.discard(ready, prepared);
        });
        let _ = emptied.await;
    }
}

impl Drop for Pool {
    /// Aborts the workers. Otherwise, idle ones would hold the state directory forever.
    fn drop(&mut self) {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        workers.iter().for_each(JoinHandle::abort);
    }
}

impl Inventory {
    fn image(&self) -> Option<Arc<StartImage>> {
        self.image.as_ref().filter(|image| !image.is_bad()).cloned()
    }

    fn is_of(&self, generation: &str) -> bool {
        self.template.as_ref().is_some_and(|template| template.generation() == generation)
    }
}

impl Shared {
    fn inventory(&self) -> MutexGuard<'_, Inventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn discard(&self, ready: VecDeque<ReadySandbox>, prepared: VecDeque<PreparedSandbox>) {
        ready.into_iter().for_each(|sandbox| self.provisioner.discard_ready(sandbox));
        prepared.into_iter().for_each(|prepared| self.provisioner.discard_prepared(prepared));
    }

    async fn work(self: Arc<Self>) {
        let mut failures = 0;
        loop {
            let wanted = self.wanted.notified();
            if self.inventory().closed {
                return;
            }
            match self.next_job() {
                Some(job) if failures < MAX_FAILURES => {
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

    /// Whether a queue is less than half full.
    fn is_low(&self) -> bool {
        let inventory = self.inventory();
        2 * inventory.ready.len() < self.size.ready || 2 * inventory.prepared.len() < self.size.prepared
    }

    /// Ready sandboxes come first. They are made from prepared ones if possible.
    fn next_job(&self) -> Option<Job> {
        if self.waiting.load(Ordering::Relaxed) > MAX_WAITING || descriptors_are_low() {
            return None;
        }
        let mut inventory = self.inventory();
        let template = inventory.template.clone()?;
        if inventory.ready.len() + inventory.making_ready < self.size.ready
            && let Some(prepared) = inventory.prepared.pop_front()
        {
            inventory.making_ready += 1;
            return Some(Job::Launch(Box::new(prepared)));
        }
        let missing_ready = self.size.ready.saturating_sub(inventory.ready.len() + inventory.making_ready);
        if inventory.prepared.len() + inventory.making_prepared < self.size.prepared + missing_ready {
            inventory.making_prepared += 1;
            return Some(Job::Prepare(template, inventory.image()));
        }
        None
    }

    fn put_back(&self, job: Job) {
        let mut inventory = self.inventory();
        match job {
            Job::Launch(prepared) => {
                inventory.making_ready -= 1;
                inventory.prepared.push_back(*prepared);
            }
            Job::Prepare(..) => inventory.making_prepared -= 1,
        }
    }

    fn run(&self, job: Job) -> Result<(), ProvisionError> {
        let result = match job {
            Job::Launch(prepared) => {
                let result = self.provisioner.launch(*prepared, &self.limits).inspect(wait_until_parked);
                let result = result.and_then(|sandbox| self.started(sandbox));
                self.inventory().making_ready -= 1;
                result.map(|sandbox| self.add_ready(sandbox))
            }
            Job::Prepare(template, image) => {
                let execution: ExecutionId = random_execution_id();
                let plan = Plan { image: image.as_ref(), ..Plan::new(&template, &self.limits) };
                let result = self.provisioner.prepare(execution, plan);
                self.inventory().making_prepared -= 1;
                result.map(|prepared| self.add_prepared(&template, prepared))
            }
        };
        self.wanted.notify_waiters();
        result.inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "could not fill the pool");
        })
    }

    fn started(&self, sandbox: ReadySandbox) -> Result<ReadySandbox, ProvisionError> {
        match self.provisioner.start(&sandbox, START_TIMEOUT) {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                self.provisioner.discard_ready(sandbox);
                Err(error)
            }
        }
    }

    fn add_ready(&self, sandbox: ReadySandbox) {
        let rejected = {
            let mut inventory = self.inventory();
            match inventory.is_of(&sandbox.record.generation) && !inventory.closed {
                true => {
                    inventory.ready.push_back(sandbox);
                    None
                }
                false => Some(sandbox),
            }
        };
        rejected.into_iter().for_each(|sandbox| self.provisioner.discard_ready(sandbox));
    }

    fn add_prepared(&self, template: &Template, prepared: PreparedSandbox) {
        let rejected = {
            let mut inventory = self.inventory();
            match inventory.is_of(template.generation()) && !inventory.closed {
                true => {
                    inventory.prepared.push_back(prepared);
                    None
                }
                false => Some(prepared),
            }
        };
        rejected.into_iter().for_each(|prepared| self.provisioner.discard_prepared(prepared));
    }
}

/// Waits until a sandbox's interpreter has arrived and waits for code. If none arrives, the sandbox is still usable,
/// because the guest starts its own. Blocks, so call it on a blocking thread of a Tokio runtime.
fn wait_until_parked(sandbox: &ReadySandbox) {
    if sandbox.template.zygote().is_none() {
        return;
    }
    let deadline = Instant::now() + PARKING_DEADLINE;
    while Instant::now() < deadline && sandbox.is_alive() {
        let parked = guest_request::is_interpreter_parked(&sandbox.directory);
        match tokio::runtime::Handle::current().block_on(parked) {
            Ok(true) => return,
            Ok(false) => std::thread::sleep(PARKING_POLL),
            Err(error) => return tracing::debug!(%error, "cannot ask the guest about its interpreter"),
        }
    }
    tracing::warn!(execution = %sandbox.record.execution, "no interpreter arrived in time");
}
