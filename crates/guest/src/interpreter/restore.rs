//! Takes over contexts from a checkpoint: first makes new streams and pipes for their kernels, and creates the contexts once
//! the kernels are there.

use std::io;
use std::sync::Arc;

use rustix::process::{Pid, WaitStatus};
use tokio::sync::oneshot;

use super::Interpreter;
use super::context::Context;
use super::contexts::Table;
use super::ends::KernelEnds;
use super::kernel::{Kernel, KernelConnection, KernelKind};
use super::language::Language;
use super::link::Progress;
use super::saved::{SavedContext, SavedContexts, SavedKernel};
use crate::connection::ProcessEnd;

/// Why contexts cannot be restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    #[error("the state has an invalid pid: {0}")]
    Pid(u32),
    #[error("the state has more default contexts than contexts")]
    Order,
    #[error("cannot make the streams of kernel {pid}: {source}")]
    Streams { pid: u32, source: io::Error },
}

/// Contexts whose kernels' connections exist.
#[derive(Debug)]
pub(crate) struct RestoringContexts {
    all: Vec<RestoringContext>,
    first: usize,
    saved: SavedContexts,
}

#[derive(Debug)]
struct RestoringContext {
    saved: SavedContext,
    kernel: Option<RestoringKernel>,
}

#[derive(Debug)]
struct RestoringKernel {
    pid: Pid,
    kind: KernelKind,
    connection: KernelConnection,
    exit: oneshot::Receiver<WaitStatus>,
}

impl Interpreter {
    /// Whether this guest has had no context yet.
    pub(crate) fn is_unused(&self) -> bool {
        self.contexts.count() == 0
    }

    /// Makes the connections, and adds the kernels' ends of them to `ends`.
    pub(crate) fn prepare_restore(
        &self,
        mut saved: SavedContexts,
        ends: &mut Vec<ProcessEnd>,
    ) -> Result<RestoringContexts, ContextError> {
        let first = saved.first;
        if first > saved.all.len() {
            return Err(ContextError::Order);
        }
        let mut all = Vec::new();
        for mut context in std::mem::take(&mut saved.all) {
            let kernel = context.kernel.take().map(|kernel| self.prepare(&kernel, ends)).transpose()?;
            all.push(RestoringContext { saved: context, kernel });
        }
        Ok(RestoringContexts { all, first, saved })
    }

    fn prepare(&self, saved: &SavedKernel, ends: &mut Vec<ProcessEnd>) -> Result<RestoringKernel, ContextError> {
        let pid = i32::try_from(saved.pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw);
        let pid = pid.ok_or(ContextError::Pid(saved.pid))?;
        let failed = |source| ContextError::Streams { pid: saved.pid, source };
        let (connection, KernelEnds { stream, stdout, stderr }) = KernelConnection::new().map_err(failed)?;
        let progress = Progress { begun: saved.begun, in_cell: saved.in_cell, line: saved.line.0.clone() };
        connection.resume(&progress);
        let all = [(saved.stream, stream), (saved.stdout, stdout), (saved.stderr, stderr)];
        ends.extend(all.map(|(connection, end)| ProcessEnd { connection, descriptor: Arc::new(end) }));
        Ok(RestoringKernel { pid, kind: saved.kind, connection, exit: self.processes.watch_exit(pid) })
    }

    /// The kernels are the guest's children now. In a copy of a sandbox, they get other random numbers.
    pub(crate) fn finish_restore(self: &Arc<Self>, restoring: RestoringContexts, is_copy: bool) {
        let RestoringContexts { all, first, saved } = restoring;
        let all = all.into_iter().map(|context| Arc::new(self.restored(context, is_copy))).collect();
        self.contexts.replace(Table {
            all,
            first,
            defaults: saved.defaults.into_iter().collect(),
            ever_created: saved.ever_created.into_iter().collect(),
        });
    }

    fn restored(self: &Arc<Self>, restoring: RestoringContext, is_copy: bool) -> Context {
        let SavedContext { id, language, kernelspec, cwd, .. } = restoring.saved;
        let language = Language { name: language, kernelspec };
        let kernel = restoring.kernel.and_then(|kernel| kernel.into_kernel(is_copy));
        Context::restored(self, id, language, cwd, kernel)
    }
}

impl RestoringKernel {
    /// None if the process is gone: the next cell gets a new kernel.
    fn into_kernel(self, is_copy: bool) -> Option<Kernel> {
        let mut kernel = self.connection.into_kernel(self.pid, self.kind).ok()?;
        kernel.exit_from_wait = Some(self.exit);
        if self.kind == KernelKind::Forked {
            kernel.send_restored(is_copy);
        }
        Some(kernel)
    }
}
