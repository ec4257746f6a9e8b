//! One context: a task that owns its kernel, runs its cells one after another, and obeys at once when it is told to
//! restart or to go.
//!
//! ```text
//! no kernel ── first cell, or asked to prepare ──▶ resting ◀──▶ running a cell
//!     ▲                                              │              │
//!     └───────────── the kernel died, or a restart ──┴──────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::cell::{self, Finish};
use super::events::{DIED, NOT_STARTED, RESTARTED, failure};
use super::kernel::{Ending, Kernel, Order};
use super::language::Language;
use super::start::{self, StartError};
use super::{Host, contexts};
use crate::figures;

/// How many cells may wait before their clients have to wait for a place.
const QUEUE: usize = 64;

/// What clients see of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct View {
    pub(super) id: String,
    pub(super) language: String,
    pub(super) cwd: String,
}

/// A context that can be asked for things. Its task ends with the last one of these.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) view: View,
    jobs: mpsc::Sender<Job>,
    controls: mpsc::Sender<Control>,
    has_kernel: Arc<AtomicBool>,
}

/// There is no such context any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removed;

/// Code to be run.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) code: String,
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Takes whole lines of events.
    pub(super) events: mpsc::Sender<Bytes>,
}

#[derive(Debug)]
enum Job {
    Execute(Execution),
    /// Sees to it that there is a kernel, and then tells who waits for that.
    Prepare(Option<oneshot::Sender<Result<(), StartError>>>),
}

#[derive(Debug)]
enum Control {
    Restart(oneshot::Sender<Result<(), StartError>>),
    Remove,
}

impl Context {
    pub(super) fn new(host: &Host, language: Language, cwd: String) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (controls, orders) = mpsc::channel(1);
        let has_kernel = Arc::new(AtomicBool::new(false));
        let view = View { id: contexts::random_id(), language: language.name.clone(), cwd };
        let seat = Seat {
            host: host.clone(),
            language,
            cwd: view.cwd.clone(),
            has_kernel: Arc::clone(&has_kernel),
            kernel: None,
        };
        tokio::spawn(seat.live(queue, orders));
        Self { view, jobs, controls, has_kernel }
    }

    pub(super) fn has_kernel(&self) -> bool {
        self.has_kernel.load(Ordering::Relaxed)
    }

    /// Puts code into the queue.
    pub(super) async fn execute(&self, execution: Execution) -> Result<(), Removed> {
        self.jobs.send(Job::Execute(execution)).await.map_err(|_| Removed)
    }

    /// Waits for the kernel. When it cannot be started the context is still there.
    pub(super) async fn prepare(&self) -> Result<Result<(), StartError>, Removed> {
        let (reply, prepared) = oneshot::channel();
        self.jobs.send(Job::Prepare(Some(reply))).await.map_err(|_| Removed)?;
        prepared.await.map_err(|_| Removed)
    }

    /// Ends the kernel whatever it does, and waits for a new one.
    pub(super) async fn restart(&self) -> Result<Result<(), StartError>, Removed> {
        let (reply, restarted) = oneshot::channel();
        self.controls.send(Control::Restart(reply)).await.map_err(|_| Removed)?;
        restarted.await.map_err(|_| Removed)
    }

    /// Ends the kernel and everything that waits for it.
    pub(super) async fn remove(&self) {
        // It may be gone already.
        let _ = self.controls.send(Control::Remove).await;
    }
}

impl Job {
    /// Tells whoever waits for it that it will not be done.
    fn abandon(self, control: Option<&Control>) {
        let restarted = matches!(control, Some(Control::Restart(_)));
        match self {
            Self::Execute(execution) => {
                let lines = match restarted {
                    true => failure(RESTARTED, "the context was restarted"),
                    false => failure(DIED, "the context was removed"),
                };
                // The client may be slow, and nobody here has to wait for it.
                tokio::spawn(async move { execution.events.send(lines).await });
            }
            // The later restart does what the earlier one was to do.
            Self::Prepare(Some(reply)) if restarted => drop(reply.send(Ok(()))),
            Self::Prepare(_) => {}
        }
    }
}

/// What the task of a context owns.
struct Seat {
    host: Host,
    language: Language,
    cwd: String,
    has_kernel: Arc<AtomicBool>,
    kernel: Option<Kernel>,
}

impl Seat {
    async fn live(mut self, mut jobs: mpsc::Receiver<Job>, mut controls: mpsc::Receiver<Control>) {
        let mut next = None;
        loop {
            let mut job = match next.take() {
                Some(job) => job,
                None => tokio::select! {
                    biased;
                    control = controls.recv() => match self.obey(control) {
                        Some(job) => job,
                        None => break,
                    },
                    Some(job) = jobs.recv() => job,
                    () = rest(&mut self.kernel) => {
                        self.set_kernel(None);
                        continue;
                    }
                },
            };
            let control = tokio::select! {
                biased;
                control = controls.recv() => control,
                () = self.work(&mut job) => continue,
            };
            job.abandon(control.as_ref());
            next = self.obey(control);
            if next.is_none() {
                break;
            }
        }
        jobs.close();
        while let Ok(job) = jobs.try_recv() {
            job.abandon(None);
        }
    }

    /// Ends the kernel; gives the job that has to be done next, or none when the context is to end.
    fn obey(&mut self, control: Option<Control>) -> Option<Job> {
        self.set_kernel(None);
        match control {
            Some(Control::Restart(reply)) => Some(Job::Prepare(Some(reply))),
            Some(Control::Remove) | None => None,
        }
    }

    fn set_kernel(&mut self, kernel: Option<Kernel>) {
        self.has_kernel.store(kernel.is_some(), Ordering::Relaxed);
        self.kernel = kernel;
    }

    async fn work(&mut self, job: &mut Job) {
        match job {
            Job::Execute(execution) if execution.events.is_closed() => {}
            Job::Execute(execution) => {
                if let Err(failed) = self.execute(execution).await {
                    // The client may have gone away.
                    let _ = execution.events.send(failed).await;
                }
            }
            Job::Prepare(reply) => {
                let prepared = self.ensure_kernel().await.map(|_| ());
                // Who asked may not be interested any more.
                let _ = reply.take().map(|reply| reply.send(prepared));
            }
        }
    }

    /// Runs a cell; an error is the lines that end it instead of the kernel's own.
    async fn execute(&mut self, execution: &Execution) -> Result<(), Bytes> {
        let _running = Running::new(&self.host);
        let mut finish = self.try_execute(execution).await?;
        if finish == Finish::NotBegun && !execution.events.is_closed() {
            // The kernel was dying when it got the cell. Nothing of it was run, so another one may.
            self.set_kernel(None);
            finish = self.try_execute(execution).await?;
        }
        let value = match (finish, &mut self.kernel) {
            (Finish::Ended, _) => return Ok(()),
            (Finish::NotBegun | Finish::Died, Some(kernel)) => died(kernel.ending().await),
            (Finish::NotBegun | Finish::Died, None) => died(None),
            (Finish::Endless, _) => "the kernel sent a result that is too large and was ended".to_owned(),
        };
        self.set_kernel(None);
        Err(failure(DIED, &value))
    }

    async fn try_execute(&mut self, execution: &Execution) -> Result<Finish, Bytes> {
        let host = self.host.clone();
        let kernel = self.ensure_kernel().await.map_err(|error| failure(NOT_STARTED, &error.to_string()))?;
        if start::begin(&host, kernel).await.is_err() {
            return Ok(Finish::NotBegun);
        }
        let order = Order::Execute { code: &execution.code, env: execution.env.as_ref() };
        Ok(cell::run(kernel, &order, &execution.events).await)
    }

    async fn ensure_kernel(&mut self) -> Result<&mut Kernel, StartError> {
        // It may have died a moment ago.
        if !self.kernel.as_mut().is_some_and(Kernel::discard) {
            self.set_kernel(None);
            let kernel = start::kernel(&self.host, &self.language, &self.cwd).await?;
            self.set_kernel(Some(kernel));
        }
        Ok(self.kernel.as_mut().expect("there was one, or it was set above"))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.has_kernel.store(false, Ordering::Relaxed);
    }
}

async fn rest(kernel: &mut Option<Kernel>) {
    match kernel {
        Some(kernel) => kernel.rest().await,
        None => std::future::pending().await,
    }
}

fn died(ending: Option<Ending>) -> String {
    match ending {
        Some(Ending::Signal(libc::SIGKILL)) => {
            "the kernel died (signal 9), perhaps because the sandbox ran out of memory".to_owned()
        }
        Some(Ending::Signal(signal)) => format!("the kernel died (signal {signal})"),
        Some(Ending::Code(code)) => format!("the kernel died (exit status {code})"),
        None => "the kernel died".to_owned(),
    }
}

/// Counts a cell while it runs.
struct Running(Host);

impl Running {
    fn new(host: &Host) -> Self {
        host.interpreter().running.fetch_add(1, Ordering::Relaxed);
        figures::keep_fresh(host.guest());
        Self(host.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.interpreter().running.fetch_sub(1, Ordering::Relaxed);
    }
}
