//! What server, spawner and launcher say to each other. File descriptors travel beside the text, in the order that
//! the comments give.

use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::step::Failure;

/// Raised whenever a message changes: a server does not use a spawner of another version.
pub(super) const VERSION: u32 = 2;

/// Server to spawner.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SpawnerRequest {
    /// Which version do you speak?
    Hello { version: u32 },
    /// Fds: launcher's channel, network namespace, guest program, upper, root layers, usr layers, cgroup entrances.
    Prepare(PrepareOrder),
}

/// Spawner to server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SpawnerReply {
    Hello { version: u32 },
    Started { pid: u32 },
    Failed(Failure),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PrepareOrder {
    pub(super) first_id: u32,
    pub(super) tmpfs_bytes: u64,
    pub(super) root_layers: usize,
    pub(super) usr_layers: usize,
    pub(super) cgroups: usize,
}

/// Server to launcher. Fds: listener, ready pipe, then memory, cpu and memory table if `has_stat_files`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LaunchOrder {
    pub(super) host_name: String,
    pub(super) figures: Figures,
    pub(super) cpus: Option<Vec<u32>>,
    pub(super) has_stat_files: bool,
}

/// Launcher to server. Fd with `Launched`: the pidfd.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromLauncher {
    Prepared,
    Launched { pid: u32 },
    Failed(Failure),
}
