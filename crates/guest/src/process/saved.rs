//! Processes as a checkpoint holds them. Another guest may read this, also a newer one: new fields need a default.

use isopod_wire::checkpoint::Connection;
use isopod_wire::rpc::process::ProcessConfig;
use isopod_wire::rpc::process::process_event::EndEvent;
use serde::{Deserialize, Serialize};

use crate::encoded::Base64;
use crate::process::terminal::SavedTerminal;
use crate::stdio::Source;

/// All processes of clients.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SavedProcesses {
    pub(super) live: Vec<SavedProcess>,
    /// The oldest first.
    pub(super) ended: Vec<SavedEnded>,
    pub(super) leftovers: Vec<SavedLeftover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedProcess {
    pub(super) pid: u32,
    pub(super) tag: Option<String>,
    pub(super) config: ProcessConfig,
    pub(super) streams: SavedStreams,
    pub(super) output: Vec<SavedOutput>,
    /// How long it may run. `None` if it was started without a timeout.
    pub(super) remaining_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SavedStreams {
    Pipes {
        /// `None` if standard input is closed, or never was a pipe.
        stdin: Option<SavedInput>,
        stdout: Connection,
        stderr: Connection,
    },
    Terminal(SavedTerminal),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedInput {
    pub(super) connection: Connection,
    /// What is in the pipe.
    pub(super) unread: Base64,
}

/// Output that no client has received.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedOutput {
    pub(super) source: Source,
    pub(super) data: Base64,
}

/// A process that has ended and is kept for clients that connect late.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedEnded {
    pub(super) pid: u32,
    pub(super) tag: Option<String>,
    pub(super) config: ProcessConfig,
    pub(super) terminal: bool,
    pub(super) output: Vec<SavedOutput>,
    pub(super) ending: SavedEnding,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SavedEnding {
    Exited(EndEvent),
    DeadlineExceeded,
}

/// A pipe of a process that has ended. Its background children print to it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedLeftover {
    /// Of the process that has ended.
    pub(super) pid: u32,
    pub(super) source: Source,
    pub(super) connection: Connection,
}
