//! The code interpreter: E2B's service on port 49999, in front of Python processes that do the work.
//!
//! ```text
//! client ── HTTP ──▶ route ──▶ context (a task; one cell at a time) ── stream and two pipes ──▶ kernel
//!                                 └─ wants a kernel ─▶ mother (a warm Python process that forks kernels)
//!                                                  └─▶ bridge (a process of its own for each context of another language)
//! ```
//!
//! A context is a name, a language and a directory; its kernel may come and go. A kernel that dies takes one cell with
//! it, and the next cell gets a new one. A mother that dies is replaced when a kernel is wanted; her kernels live on.
//! What runs in a kernel is not trusted: whatever it sends, the guest neither panics nor waits nor keeps without bound.

mod cell;
mod context;
mod contexts;
mod create;
mod driver;
mod events;
mod execute;
mod kernel;
mod language;
mod lines;
mod list;
mod listen;
mod mother;
mod output;
mod remove;
mod restart;
mod route;
mod start;
mod status;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use status::status;

use crate::guest::Guest;
use crate::interpreter::contexts::Contexts;
use crate::interpreter::language::Kernelspecs;
use crate::interpreter::mother::Mothers;

/// Where a template has what the interpreter is made of.
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

/// All that the sandbox's interpreter knows.
#[derive(Debug)]
pub(crate) struct Interpreter {
    programs: Programs,
    contexts: Contexts,
    mothers: Mothers,
    kernelspecs: Kernelspecs,
    /// How many cells run now.
    running: AtomicUsize,
}

impl Interpreter {
    pub(crate) fn new(programs: Programs) -> Self {
        Self {
            programs,
            contexts: Contexts::default(),
            mothers: Mothers::default(),
            kernelspecs: Kernelspecs::default(),
            running: AtomicUsize::new(0),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }
}

/// Listens, and makes the first kernel as soon as there is a mother for it.
pub(crate) fn open(guest: &Arc<Guest>, mother: Option<OwnedFd>) -> io::Result<()> {
    listen::open(guest)?;
    if let Some(socket) = mother {
        mother::park(guest, socket)?;
    }
    Ok(())
}

/// A guest that is known to have an interpreter. What serves the port, and every context, holds one.
#[derive(Clone, Debug)]
struct Host(Arc<Guest>);

impl Host {
    fn new(guest: &Arc<Guest>) -> Option<Self> {
        guest.interpreter.as_ref().map(|_| Self(Arc::clone(guest)))
    }

    fn guest(&self) -> &Arc<Guest> {
        &self.0
    }

    fn interpreter(&self) -> &Interpreter {
        self.0.interpreter.as_ref().expect("`new` makes hosts only of guests that have one")
    }
}
