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
mod build;
mod built;
mod create;
mod dial;
mod fleet;
mod kill;
mod kinds;
mod network;
mod pause;
mod resume;
mod usage;
mod watch;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::node::{Incarnation, NodeState};

pub(crate) use build::build_spec;
use dial::SpareSockets;
pub(crate) use fleet::Fleet;

use crate::blank::Blank;
use crate::record::Record;
use crate::slot::Slot;
use crate::spare::SandboxNetwork;
use crate::template::Template;

/// A sandbox with an owner.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) incarnation: Incarnation,
    directory: PathBuf,
    /// What changes. Whoever changes the state of the sandbox holds this for as long as it takes.
    life: tokio::sync::Mutex<Life>,
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
    /// Open on the execution's directory, where the guest's socket is.
    directory: File,
}

impl Processes {
    fn of(blank: Blank) -> std::io::Result<(Self, Record)> {
        let directory = File::open(&blank.directory)?;
        let Blank { record, template, slot, cgroup, network, pidfd, .. } = blank;
        let (sockets, pidfd) = (Arc::default(), Arc::new(pidfd));
        Ok((Self { cgroup, slot, network, sockets, pidfd, _template: Some(template), directory }, record))
    }
}

impl Life {
    fn state(&self) -> NodeState {
        self.record.state
    }
}
