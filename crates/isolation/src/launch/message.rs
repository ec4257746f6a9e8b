//! The messages between server, spawner and launcher. File descriptors are passed beside the text, in the order of the
//! comments.

use isopod_wire::KernelFeatures;
use serde::{Deserialize, Serialize};

use super::boot_clock::ClockOffsets;
use super::criu::CriuOrder;
use super::proc_overrides::ProcOverrides;
use super::step::Failure;
use super::workspace::WorkspaceOrder;
use super::{RootStyle, ZygoteProgram};
use crate::cgroup::CgroupView;

/// Incremented whenever a message changes, or what a spawner does for security. A server does not use a spawner of
/// another version.
pub(super) const VERSION: u32 = 11;

/// Server to spawner.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SpawnerRequest {
    /// Asks for the version.
    Hello { version: u32 },
    /// Descriptors: launcher's channel, guest program, network namespace unless it is to be created, upper, the tree of
    /// kept layers if there are any, root layers, usr layers, cgroup entrances.
    Prepare(Box<PrepareOrder>),
    /// Descriptors: see `workspace::run`.
    Workspace(WorkspaceOrder),
    /// Descriptors: the child's channel, CRIU's program, the images, the log's directory, the first process, its namespaces, cgroup entrances.
    Criu(CriuOrder),
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
    pub(super) role: RoleOrder,
    pub(super) first_id: u32,
    pub(super) has_netns: bool,
    pub(super) tmpfs_bytes: u64,
    /// Names in the tree of kept layers, topmost first.
    pub(super) kept_root: Vec<String>,
    pub(super) kept_usr: Vec<String>,
    pub(super) style: RootStyle,
    pub(super) root_layers: usize,
    pub(super) usr_layers: usize,
    pub(super) cgroups: usize,
    pub(super) cgroup_views: Vec<CgroupView>,
    pub(super) host_name: String,
    #[serde(rename = "figures")]
    pub(super) proc_overrides: ProcOverrides,
    pub(super) features: KernelFeatures,
    /// Pids of the sandbox begin after this one.
    pub(super) last_pid: Option<u32>,
    /// Set if processes are restored later.
    pub(super) clocks: Option<ClockOffsets>,
    /// What the sandbox shows, if not a new one.
    pub(super) boot_id: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RoleOrder {
    Sandbox { owner: u32 },
    Zygote(ZygoteProgram),
}

/// Server to the waiting first process. Descriptors: listener, ready pipe, the interpreter's end if it has one, then
/// memory and cpu usage files if the host has them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LaunchOrder {
    pub(super) interpreter: Option<InterpreterOrder>,
    /// Set if they differ from those of the preparation.
    #[serde(rename = "figures")]
    pub(super) proc_overrides: Option<ProcOverrides>,
    pub(super) cpus: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct InterpreterOrder {
    #[serde(rename = "has_mother")]
    pub(super) has_forkserver: bool,
}

/// Launcher and first process to server, over the same channel. Each sends one of these, in any order, or a failure.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Progress {
    /// From the launcher, with the pidfd and the memory file system: the first process exists.
    Cloned {
        pid: u32,
    },
    /// From the launcher, with the network namespace that it created, if it was to create one.
    Network,
    /// From the first process: it waits for its order.
    Waiting,
    Failed(Failure),
}
