//! The guest's part in a checkpoint of its sandbox, and in the restore of one. `isopod_wire::checkpoint` has the contract.
//!
//! ```text
//! running ── hold ──▶ held ── release, or a timeout ──▶ running       (state and files are taken while it is held)
//! running ── restore ──▶ restoring ── finish ──▶ running              (only before anything has run)
//! ```
//!
//! While a sandbox is held or restored, the gate is closed. Whatever a phase has made ends with it: the root process and its
//! file, and the processes' ends of connections.

mod files;
mod finish;
mod hold;
mod identity;
mod release;
mod restore;
mod root;
mod route;
mod state;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use isopod_wire::checkpoint::MAX_HOLD;
use tokio::sync::Mutex;

pub(crate) use route::{answer, has_route};

use crate::checkpoint::hold::Hold;
use crate::checkpoint::restore::Restoration;
use crate::fs::Watchers;
use crate::gate::Gate;
use crate::http::HttpError;
use crate::interpreter::Interpreter;
use crate::logs::Logs;
use crate::process::Processes;

/// The checkpoints of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    gate: Gate,
    processes: Arc<Processes>,
    interpreter: Option<Arc<Interpreter>>,
    watchers: Arc<Watchers>,
    logs: Arc<Logs>,
    /// How long a hold lasts if nobody releases it.
    max_hold: Duration,
    /// Locked during a request that looks at it or changes it. A request that is given up leaves it as it was.
    phase: Arc<Mutex<Phase>>,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Running,
    Held(Hold),
    Restoring(Box<Restoration>),
}

impl Checkpoint {
    pub(crate) fn new(
        gate: Gate,
        processes: Arc<Processes>,
        interpreter: Option<Arc<Interpreter>>,
        watchers: Arc<Watchers>,
        logs: Arc<Logs>,
    ) -> Self {
        Self { gate, processes, interpreter, watchers, logs, max_hold: MAX_HOLD, phase: Arc::default() }
    }
}

fn conflict(message: impl Into<String>) -> HttpError {
    HttpError::new(StatusCode::CONFLICT, message)
}

fn failed(message: impl Into<String>) -> HttpError {
    HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}
