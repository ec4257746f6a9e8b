//! Sandboxes that have an owner.
//!
//! ```text
//!            create                pause(memory)
//! (nothing) ───────▶ Running ◀───────────────────▶ Frozen
//!                     │   ▲         resume           │
//!    pause(files)     ▼   │ resume (new execution)   │ pause(files), reboot of the host
//!                    Stopped ◀───────────────────────┤
//!                     │   ▲                          │ after a while, if the host can
//!              resume ▼   │ pause(files)             ▼
//!                   Running ◀──────── resume ────── Saved (memory on disk, new execution)
//! ```
//!
//! From every state, `kill` leads to nothing. So does the end of the first process, which is also reported as an event.

mod adopt;
mod build_recipe;
mod built;
mod create;
mod create_from_snapshot;
mod criu_program;
mod dial;
mod kill;
mod memory_trial;
mod network;
mod pack_memory;
mod pause;
mod replacements;
mod resume;
mod rollback;
mod sandboxes;
mod save_early;
mod save_memory;
mod snapshot;
mod start_images;
mod templates;
mod unfinished_save;
mod usage;
mod watch;
mod workspace;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::node::{Incarnation, NodeSandbox, NodeState};

pub(crate) use build_recipe::{WantedLayer, build_spec};
use dial::SpareSockets;
pub(crate) use sandboxes::{Sandboxes, SandboxesConfig};
pub(crate) use workspace::maintain_workspaces;

use crate::provision::ReadySandbox;
use crate::record::Record;
use crate::recycle::SandboxNetwork;
use crate::slot::Slot;
use crate::template::Template;

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) incarnation: Incarnation,
    directory: PathBuf,
    /// The state that changes. Whoever changes it holds the lock for as long as that takes.
    inner: tokio::sync::Mutex<Inner>,
    /// Held while its workspace is mounted again.
    mounting: tokio::sync::Mutex<()>,
    /// How often it was paused.
    pauses: AtomicU64,
    /// What it last was, for lists that must not wait while it changes.
    shown: Mutex<Option<NodeSandbox>>,
}

#[derive(Debug)]
struct Inner {
    record: Record,
    /// `None` once it is stopped or gone.
    processes: Option<Processes>,
    /// Set when the sandbox is ended on purpose, so that the watcher does not report it.
    ending: bool,
}

/// What a sandbox with processes has.
#[derive(Debug)]
struct Processes {
    cgroup: SandboxCgroup,
    slot: Slot,
    network: SandboxNetwork,
    sockets: Arc<SpareSockets>,
    pidfd: Arc<OwnedFd>,
    /// Protects its layers from being pruned. `None` if those of an adopted sandbox could not be found.
    _template: Option<Arc<Template>>,
    /// The guest's socket. It is kept open, so that it leads to the guest even if its path is removed.
    socket: OwnedFd,
}

impl Sandbox {
    fn new(incarnation: Incarnation, directory: PathBuf, inner: Inner) -> Arc<Self> {
        Arc::new(Self {
            incarnation,
            directory,
            inner: tokio::sync::Mutex::new(inner),
            mounting: Default::default(),
            pauses: Default::default(),
            shown: Default::default(),
        })
    }
}

impl Processes {
    /// From a ready sandbox and the open socket of its guest.
    fn of(ready: ReadySandbox, socket: OwnedFd) -> (Self, Record) {
        let ReadySandbox { record, template, slot, cgroup, network, pidfd, .. } = ready;
        let (sockets, pidfd) = (Arc::default(), Arc::new(pidfd));
        (Self { cgroup, slot, network, sockets, pidfd, _template: Some(template), socket }, record)
    }
}

impl Inner {
    fn state(&self) -> NodeState {
        self.record.state
    }
}
