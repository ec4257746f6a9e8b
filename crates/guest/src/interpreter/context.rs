//! One context: a task that owns the kernel and runs the cells one after another. A fork takes its turn like a cell. A restart
//! or removal interrupts it at once.
//!
//! ```text
//! no kernel ── first cell, or asked to prepare ───▶ idle ◀───▶ running a cell
//!     ▲                                              │              │
//!     └───────────── the kernel died, or a restart ──┴──────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::process::Pid;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::cell::{self, CellEnd};
use super::copies::{self, CopyError};
use super::events::{DIED, NOT_STARTED, RESTARTED, failure};
use super::kernel::{Command, Kernel, KernelExit, KernelKind};
use super::language::Language;
use super::link::Link;
use super::start::{self, StartError};
use super::{Interpreter, contexts};

/// How many cells may wait in the queue. The clients of further ones wait for a place.
const MAX_QUEUED_CELLS: usize = 64;

/// A context as clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct View {
    pub(super) id: String,
    pub(super) language: String,
    pub(super) cwd: String,
}

/// A handle to a context. The task ends when the last handle is dropped.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) view: View,
    pub(super) language: Language,
    jobs: mpsc::Sender<Job>,
    controls: mpsc::Sender<Control>,
    kernel: CurrentKernel,
}

/// What others see of a context's kernel. Written by the task.
#[derive(Clone, Debug, Default)]
struct CurrentKernel(Arc<Mutex<Option<KernelView>>>);

/// A kernel as others see it.
#[derive(Clone, Debug)]
pub(super) struct KernelView {
    pub(super) pid: Pid,
    pub(super) kind: KernelKind,
    pub(super) link: Arc<Link>,
}

impl CurrentKernel {
    fn get(&self) -> MutexGuard<'_, Option<KernelView>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, kernel: Option<&Kernel>) {
        let view =
            |kernel: &Kernel| KernelView { pid: kernel.pid(), kind: kernel.kind(), link: Arc::clone(kernel.link()) };
        *self.get() = kernel.map(view);
    }
}

/// The context no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removed;

/// Code to be run.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) code: String,
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Receives whole lines of events.
    pub(super) events: mpsc::Sender<Bytes>,
}

#[derive(Debug)]
enum Job {
    Execute(Execution),
    /// Starts a kernel if there is none, and reports that to the caller.
    Prepare(Option<oneshot::Sender<Result<(), StartError>>>),
    /// Makes copies of the kernel. Those that nobody receives are killed.
    Fork {
        count: usize,
        reply: Option<oneshot::Sender<Copies>>,
    },
    /// Waits for a cell that an earlier guest has started.
    Finish,
}

/// Copies of a kernel.
pub(super) type Copies = Result<Vec<Result<Kernel, CopyError>>, CopyError>;

#[derive(Debug)]
enum Control {
    Restart(oneshot::Sender<Result<(), StartError>>),
    Remove,
}

impl Context {
    pub(super) fn new(interpreter: &Arc<Interpreter>, language: Language, cwd: String) -> Self {
        Self::start(interpreter, contexts::random_id(), language, cwd, None)
    }

    /// A context whose kernel is there already.
    pub(super) fn with_kernel(interpreter: &Arc<Interpreter>, language: Language, cwd: String, kernel: Kernel) -> Self {
        Self::start(interpreter, contexts::random_id(), language, cwd, Some(kernel))
    }

    /// A context of an earlier guest.
    pub(super) fn restored(
        interpreter: &Arc<Interpreter>,
        id: String,
        language: Language,
        cwd: String,
        kernel: Option<Kernel>,
    ) -> Self {
        Self::start(interpreter, id, language, cwd, kernel)
    }

    fn start(
        interpreter: &Arc<Interpreter>,
        id: String,
        language: Language,
        cwd: String,
        kernel: Option<Kernel>,
    ) -> Self {
        let (jobs, queue) = mpsc::channel(MAX_QUEUED_CELLS);
        let (controls, control_queue) = mpsc::channel(1);
        let current = CurrentKernel::default();
        current.set(kernel.as_ref());
        let view = View { id, language: language.name.clone(), cwd };
        let task = ContextTask {
            interpreter: Arc::clone(interpreter),
            language: language.clone(),
            cwd: view.cwd.clone(),
            current: current.clone(),
            kernel,
        };
        tokio::spawn(task.run(queue, control_queue));
        Self { view, language, jobs, controls, kernel: current }
    }

    pub(super) fn has_kernel(&self) -> bool {
        self.kernel.get().is_some()
    }

    pub(super) fn kernel(&self) -> Option<KernelView> {
        self.kernel.get().clone()
    }

    /// Queues code.
    pub(super) async fn execute(&self, execution: Execution) -> Result<(), Removed> {
        self.jobs.send(Job::Execute(execution)).await.map_err(|_| Removed)
    }

    /// Waits for a kernel. If it cannot be started, the context still exists.
    pub(super) async fn prepare(&self) -> Result<Result<(), StartError>, Removed> {
        let (reply, prepared) = oneshot::channel();
        self.jobs.send(Job::Prepare(Some(reply))).await.map_err(|_| Removed)?;
        prepared.await.map_err(|_| Removed)
    }

    /// Waits for copies of the kernel, which are made after the cells that are in the queue.
    pub(super) async fn fork(&self, count: usize) -> Result<Copies, Removed> {
        let (reply, forked) = oneshot::channel();
        self.jobs.send(Job::Fork { count, reply: Some(reply) }).await.map_err(|_| Removed)?;
        forked.await.map_err(|_| Removed)
    }

    /// Kills the kernel, whatever it is doing, and waits for a new one.
    pub(super) async fn restart(&self) -> Result<Result<(), StartError>, Removed> {
        let (reply, restarted) = oneshot::channel();
        self.controls.send(Control::Restart(reply)).await.map_err(|_| Removed)?;
        restarted.await.map_err(|_| Removed)
    }

    /// Kills the kernel and drops everything that waits for it.
    pub(super) async fn remove(&self) {
        // The task may have ended already.
        let _ = self.controls.send(Control::Remove).await;
    }
}

impl Job {
    /// Tells the caller that the job will not be done.
    fn abandon(self, control: Option<&Control>) {
        let restarted = matches!(control, Some(Control::Restart(_)));
        match self {
            Self::Execute(execution) => {
                let lines = match restarted {
                    true => failure(RESTARTED, "the context was restarted"),
                    false => failure(DIED, "the context was removed"),
                };
                // The client may be slow, and this task must not wait for it.
                tokio::spawn(async move { execution.events.send(lines).await });
            }
            // The later restart does what the earlier one should have done.
            Self::Prepare(Some(reply)) if restarted => drop(reply.send(Ok(()))),
            Self::Fork { reply: Some(reply), .. } if restarted => drop(reply.send(Err(CopyError::Restarted))),
            Self::Prepare(_) | Self::Fork { .. } | Self::Finish => {}
        }
    }
}

/// The task of a context.
struct ContextTask {
    interpreter: Arc<Interpreter>,
    language: Language,
    cwd: String,
    current: CurrentKernel,
    kernel: Option<Kernel>,
}

impl ContextTask {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>, mut controls: mpsc::Receiver<Control>) {
        let in_cell = self.kernel.as_ref().is_some_and(|kernel| kernel.link().is_in_cell());
        let mut next = in_cell.then_some(Job::Finish);
        loop {
            let mut job = match next.take() {
                Some(job) => job,
                None => tokio::select! {
                    biased;
                    control = controls.recv() => match self.handle(control).await {
                        Some(job) => job,
                        None => break,
                    },
                    Some(job) = jobs.recv() => job,
                    () = idle(&mut self.kernel) => {
                        self.end_kernel().await;
                        continue;
                    }
                },
            };
            let control = tokio::select! {
                biased;
                control = controls.recv() => control,
                () = self.run_job(&mut job) => continue,
            };
            job.abandon(control.as_ref());
            next = self.handle(control).await;
            if next.is_none() {
                break;
            }
        }
        jobs.close();
        while let Ok(job) = jobs.try_recv() {
            job.abandon(None);
        }
    }

    /// Kills the kernel. Returns the next job, or `None` if the context should end.
    async fn handle(&mut self, control: Option<Control>) -> Option<Job> {
        self.end_kernel().await;
        match control {
            Some(Control::Restart(reply)) => Some(Job::Prepare(Some(reply))),
            Some(Control::Remove) | None => None,
        }
    }

    fn set_kernel(&mut self, kernel: Option<Kernel>) {
        self.current.set(kernel.as_ref());
        self.kernel = kernel;
    }

    /// Kills the kernel.
    async fn end_kernel(&mut self) {
        let interpreter = Arc::clone(&self.interpreter);
        let _pass = interpreter.gate.pass().await;
        self.set_kernel(None);
    }

    async fn run_job(&mut self, job: &mut Job) {
        match job {
            Job::Execute(execution) if execution.events.is_closed() => {}
            Job::Execute(execution) => {
                if let Err(failed) = self.execute(execution).await {
                    // The client may have disconnected.
                    let _ = execution.events.send(failed).await;
                }
            }
            Job::Fork { reply: Some(reply), .. } if reply.is_closed() => {}
            Job::Fork { count, reply } => {
                let interpreter = Arc::clone(&self.interpreter);
                // Until the copies are handed over.
                let _pass = interpreter.gate.pass().await;
                let copies = self.fork(*count).await;
                let _ = reply.take().map(|reply| reply.send(copies));
            }
            Job::Prepare(reply) => {
                let interpreter = Arc::clone(&self.interpreter);
                let _pass = interpreter.gate.pass().await;
                let prepared = self.ensure_kernel().await.map(|_| ());
                // The caller may have stopped waiting.
                let _ = reply.take().map(|reply| reply.send(prepared));
            }
            Job::Finish => self.finish_cell().await,
        }
    }

    async fn fork(&mut self, count: usize) -> Copies {
        let _activity = self.interpreter.proc_overrides.begin();
        let interpreter = Arc::clone(&self.interpreter);
        let kernel = self.ensure_kernel().await.map_err(CopyError::Start)?;
        let copies = match start::begin(&interpreter, kernel).await {
            Ok(()) => copies::fork(&interpreter, kernel, count).await,
            Err(_) => Err(CopyError::Died),
        };
        if let Err(CopyError::Died | CopyError::NotSent) = copies {
            self.set_kernel(None);
        }
        copies
    }

    async fn finish_cell(&mut self) {
        let interpreter = Arc::clone(&self.interpreter);
        let _activity = interpreter.proc_overrides.begin();
        let Some(kernel) = &mut self.kernel else { return };
        if cell::finish(&interpreter.gate, kernel).await != CellEnd::Ended {
            self.end_kernel().await;
        }
    }

    /// Runs a cell. An error holds the lines that end it in place of the kernel's own.
    async fn execute(&mut self, execution: &Execution) -> Result<(), Bytes> {
        let _activity = self.interpreter.proc_overrides.begin();
        let mut end = self.try_execute(execution).await?;
        if end == CellEnd::NotBegun && !execution.events.is_closed() {
            // The kernel was dying when it got the cell. It ran nothing of it, so another kernel may.
            self.end_kernel().await;
            end = self.try_execute(execution).await?;
        }
        let value = match (end, &mut self.kernel) {
            (CellEnd::Ended, _) => return Ok(()),
            (CellEnd::NotBegun | CellEnd::Died, Some(kernel)) => died(kernel.exit_status().await),
            (CellEnd::NotBegun | CellEnd::Died, None) => died(None),
            (CellEnd::LineTooLong, _) => "the kernel sent a result that is too large and was ended".to_owned(),
        };
        self.end_kernel().await;
        Err(failure(DIED, &value))
    }

    async fn try_execute(&mut self, execution: &Execution) -> Result<CellEnd, Bytes> {
        let interpreter = Arc::clone(&self.interpreter);
        let pass = interpreter.gate.pass().await;
        let kernel = self.ensure_kernel().await.map_err(|error| failure(NOT_STARTED, &error.to_string()))?;
        if start::begin(&interpreter, kernel).await.is_err() {
            return Ok(CellEnd::NotBegun);
        }
        let command = Command::Execute { code: &execution.code, env: execution.env.as_ref() };
        if !cell::send(kernel, &command).await {
            return Ok(CellEnd::NotBegun);
        }
        drop(pass);
        Ok(cell::run(&interpreter.gate, kernel, &execution.events).await)
    }

    async fn ensure_kernel(&mut self) -> Result<&mut Kernel, StartError> {
        // The kernel may have died a moment ago.
        if !self.kernel.as_mut().is_some_and(Kernel::discard) {
            self.set_kernel(None);
            let kernel = start::kernel(&self.interpreter, &self.language, &self.cwd).await?;
            self.set_kernel(Some(kernel));
        }
        Ok(self.kernel.as_mut().expect("it existed, or was set above"))
    }
}

impl Drop for ContextTask {
    fn drop(&mut self) {
        self.current.set(None);
    }
}

async fn idle(kernel: &mut Option<Kernel>) {
    match kernel {
        Some(kernel) => kernel.idle().await,
        None => std::future::pending().await,
    }
}

fn died(exit_status: Option<KernelExit>) -> String {
    match exit_status {
        Some(KernelExit::Signal(libc::SIGKILL)) => {
            "the kernel died (signal 9), perhaps because the sandbox ran out of memory".to_owned()
        }
        Some(KernelExit::Signal(signal)) => format!("the kernel died (signal {signal})"),
        Some(KernelExit::Code(code)) => format!("the kernel died (exit status {code})"),
        None => "the kernel died".to_owned(),
    }
}
