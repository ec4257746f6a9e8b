//! Sandboxes that have an owner.
//!
//! ```text
//!            create                pause(memory)
//! (nothing) ───────▶ Running ◀───────────────────▶ Frozen
//!                     │   ▲         resume           │
//!    pause(files)     ▼   │ resume (a new life)      │ pause(files), reboot of the host
//!                    Stopped ◀───────────────────────┘
//! ```
//!
//! From every state, `kill` leads to nothing. A first process that ends by itself does the same, and is told as an event.

mod adopt;
mod build_recipe;
mod built;
mod create;
mod dial;
mod fleet;
mod kill;
mod network;
mod pause;
mod resume;
mod templates;
mod usage;
mod watch;
mod workspace;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::node::{Incarnation, NodeState};

pub(crate) use build_recipe::build_spec;
use dial::SpareSockets;
pub(crate) use fleet::{Fleet, FleetConfig};
pub(crate) use workspace::maintain_workspaces;

use crate::provision::ReadySandbox;
use crate::record::Record;
use crate::recycle::SandboxNetwork;
use crate::slot::Slot;
use crate::template::Template;

/// A sandbox with an owner.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) incarnation: Incarnation,
    directory: PathBuf,
    /// What changes. Whoever changes the state of the sandbox holds this for as long as it takes.
    life: tokio::sync::Mutex<Life>,
    /// Held by whoever mounts its workspace anew.
    mounting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Life {
    record: Record,
    /// `None` once it is stopped or gone.
    processes: Option<Processes>,
    /// Set by whoever ends it, so that the watcher knows that the end was wanted.
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
    /// Keeps the layers it stands on. `None` when an adopted one's could not be found.
    _template: Option<Arc<Template>>,
    /// The guest's socket, held open: it leads to the guest even when its name was removed from outside.
    socket: OwnedFd,
}

impl Processes {
    /// Of a ready one whose guest's socket was opened.
    fn of(ready: ReadySandbox, socket: OwnedFd) -> (Self, Record) {
        let ReadySandbox { record, template, slot, cgroup, network, pidfd, .. } = ready;
        let (sockets, pidfd) = (Arc::default(), Arc::new(pidfd));
        (Self { cgroup, slot, network, sockets, pidfd, _template: Some(template), socket }, record)
    }
}

impl Life {
    fn state(&self) -> NodeState {
        self.record.state
    }
}
