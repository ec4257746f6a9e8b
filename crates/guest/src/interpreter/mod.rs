//! The code interpreter: E2B's service on port 49999, in front of Python processes that do the work.
//!
//! ```text
//! client ── HTTP ──▶ route ──▶ context (a task; one cell at a time) ── stream and two pipes ──▶ kernel
//!                                 └─ wants a kernel ─▶ forkserver (a warm Python process that forks kernels)
//!                                                  └─▶ bridge (a process of its own for each context of another language)
//!                                 └─ fork ─▶ kernel forks copies of itself, each the kernel of a new context
//! ```
//!
//! A context is a name, a language and a directory; its kernel may come and go. If a kernel dies, the running cell fails and
//! the next cell gets a new kernel. If the forkserver dies, its kernels live on, and the guest starts a new one when it needs
//! a kernel. Code in a kernel is not trusted: whatever it sends, the guest does not panic, hang or use unbounded memory.

mod cell;
mod context;
mod contexts;
mod copies;
mod create;
mod driver;
mod ends;
mod events;
mod execute;
mod fork;
mod forkserver;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod hold;
mod kernel;
mod language;
mod lines;
mod link;
mod list;
mod listen;
mod output;
mod prepare;
mod remove;
mod restart;
mod restore;
mod route;
mod save;
mod saved;
mod start;
mod status;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use prepare::prepare;
pub(crate) use restore::{ContextError, RestoringContexts};
pub(crate) use saved::SavedContexts;
pub(crate) use status::status;

use crate::gate::Gate;
use crate::interpreter::contexts::Contexts;
use crate::interpreter::forkserver::CurrentForkserver;
use crate::interpreter::language::Kernelspecs;
use crate::proc_overrides::ProcOverrides;
use crate::process::Processes;
use crate::settings::CurrentSettings;

/// Where the interpreter's programs are in a template.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) python: PathBuf,
    /// The directory that holds `run.py`.
    pub(crate) driver: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self { python: "/usr/bin/python3".into(), driver: "/usr/lib/isopod/driver".into() }
    }
}

/// The state of the sandbox's interpreter.
#[derive(Debug)]
pub(crate) struct Interpreter {
    programs: Programs,
    contexts: Contexts,
    forkserver: CurrentForkserver,
    kernelspecs: Kernelspecs,
    settings: Arc<CurrentSettings>,
    /// Reaps kernels.
    processes: Arc<Processes>,
    proc_overrides: Arc<ProcOverrides>,
    gate: Gate,
}

impl Interpreter {
    pub(crate) fn new(
        programs: Programs,
        settings: Arc<CurrentSettings>,
        processes: Arc<Processes>,
        proc_overrides: Arc<ProcOverrides>,
        gate: Gate,
    ) -> Self {
        Self {
            programs,
            contexts: Contexts::default(),
            forkserver: CurrentForkserver::default(),
            kernelspecs: Kernelspecs::default(),
            settings,
            processes,
            proc_overrides,
            gate,
        }
    }
}

/// Opens the port. With the socket of a forkserver, starts the first kernel as soon as that is ready.
pub(crate) fn open(interpreter: &Arc<Interpreter>, forkserver: Option<OwnedFd>) -> io::Result<()> {
    listen::open(interpreter)?;
    if let Some(socket) = forkserver {
        forkserver::park(interpreter, socket)?;
    }
    Ok(())
}
