//! What a checkpoint keeps of the contexts. It is taken while all kernels are stopped and the gate is closed.

use isopod_wire::checkpoint::Connection;

use super::Interpreter;
use super::context::{Context, KernelView};
use super::saved::{SavedContext, SavedContexts, SavedKernel};
use crate::encoded::Base64;

impl Interpreter {
    /// All descriptors that lead from kernels to the guest.
    pub(crate) fn connections(&self) -> Vec<Connection> {
        self.contexts.kernels().iter().flat_map(|kernel| kernel.link.connections.all()).collect()
    }

    pub(crate) fn save(&self) -> SavedContexts {
        self.contexts.save(save_context)
    }
}

fn save_context(context: &Context) -> SavedContext {
    SavedContext {
        id: context.view.id.clone(),
        language: context.language.name.clone(),
        kernelspec: context.language.kernelspec.clone(),
        cwd: context.view.cwd.clone(),
        kernel: context.kernel().as_ref().map(save_kernel),
    }
}

fn save_kernel(kernel: &KernelView) -> SavedKernel {
    let progress = kernel.link.progress();
    let connections = kernel.link.connections;
    SavedKernel {
        pid: kernel.pid.as_raw_nonzero().get().unsigned_abs(),
        kind: kernel.kind,
        begun: progress.begun,
        in_cell: progress.in_cell,
        line: Base64(progress.line),
        stream: connections.stream,
        stdout: connections.stdout,
        stderr: connections.stderr,
    }
}
