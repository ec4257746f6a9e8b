//! The node API, through which the control plane drives a machine that runs sandboxes.
//!
//! `isopod-node` implements it in process. Every call names an incarnation (sandbox and execution), every end has a reason,
//! and every call may be repeated without harm.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::build::{
    BuildError, BuildEvent, BuildFailure, BuildPhase, BuildSpec, BuiltTemplate, ExportError, ExportSpec, ExportedImage,
    KeptTemplate, RemoveTemplateError,
};
// Users of the node API find the type of its tokens here too.
pub use crate::secret::Secret;
use crate::{Bytes, ExecutionId, KernelFeatures, Limits, NetworkPolicy, SandboxId, SnapshotId};

/// One incarnation of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// This execution of it.
    pub execution: ExecutionId,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sandbox, self.execution)
    }
}

/// The label that holds a sandbox's team. Pooled sandboxes of a team's own template serve that team alone.
pub const TEAM_LABEL: &str = "isopod.team";

/// How to create a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The id of the sandbox.
    pub sandbox: SandboxId,
    /// The id or name of a template on this node.
    pub template: String,
    /// Its resource limits.
    pub limits: Limits,
    /// Its network policy.
    pub network: NetworkPolicy,
    /// Environment variables of every process inside.
    pub env: BTreeMap<String, String>,
    /// The token that the guest requires. `None` means that it answers every request that reaches it.
    pub access_token: Option<Secret>,
    /// Labels of the owner. The node stores them in the record, returns them after adoption, and does not interpret them.
    pub labels: BTreeMap<String, String>,
    /// Parts of the workspace to mount. Every incarnation mounts them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<WorkspaceMount>,
    /// What of the kernel it has besides. Every incarnation has the same.
    #[serde(default, skip_serializing_if = "KernelFeatures::is_none")]
    pub features: KernelFeatures,
    /// The snapshot that it starts from: its files, and its processes if the snapshot has memory. It then also has the
    /// snapshot's template and features, whatever this says. It does not need the snapshot any more once it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<InitialSnapshot>,
}

/// The snapshot that a sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RecordedSnapshot")]
pub struct InitialSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Whether to start from its files alone, even if it has memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub files_only: bool,
}

/// Records of earlier versions have the id alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedSnapshot {
    Id(SnapshotId),
    Whole {
        id: SnapshotId,
        #[serde(default)]
        files_only: bool,
    },
}

impl From<RecordedSnapshot> for InitialSnapshot {
    fn from(recorded: RecordedSnapshot) -> Self {
        match recorded {
            RecordedSnapshot::Id(id) => Self { id, files_only: false },
            RecordedSnapshot::Whole { id, files_only } => Self { id, files_only },
        }
    }
}

/// A part of the workspace that is mounted in a sandbox. The sandbox cannot reach any other part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceMount {
    /// The mount point inside: an absolute path. Missing directories are created.
    pub path: String,
    /// The part: `executions/<id>` or `volumes/<id>`. It is created if it does not exist.
    pub subtree: String,
    /// Whether the mount is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// An empty file outside of the mount that is created with it, for programs that wait for such a file. It belongs to
    /// the sandbox alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_file: Option<String>,
}

/// A sandbox on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSandbox {
    /// The incarnation.
    pub incarnation: Incarnation,
    /// The spec it was created with, with later changes of the network policy.
    pub spec: SandboxSpec,
    /// Its state.
    pub state: NodeState,
}

/// The state of a sandbox on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Its processes run, and the guest answers.
    Running,
    /// Its processes are frozen, with their memory in place.
    Frozen,
    /// Its processes and their memory are on disk.
    Saved,
    /// It has no processes; its files are kept.
    Stopped,
}

/// What a snapshot keeps, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// Processes with their memory, and files, until it is removed.
    Memory,
    /// Only files, until it is removed.
    Files,
    /// As [`Self::Memory`], but for sandboxes that are created at once: a node that starts again does not have it any more, so
    /// nothing has to be written to disk for good.
    Temporary,
}

impl SnapshotKind {
    /// Whether it has the processes and their memory.
    pub fn has_memory(self) -> bool {
        self != Self::Files
    }
}

/// A snapshot on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// Its id, which the caller has chosen.
    pub id: SnapshotId,
    /// Whether it has the processes and their memory, and not only the files.
    pub has_memory: bool,
    /// The template of its source.
    pub template: String,
    /// The limits of its source. With memory, sandboxes that start from it have the same.
    pub limits: Limits,
    /// When it was taken.
    pub made_at: SystemTime,
    /// What its saved memory takes on disk.
    pub memory_size: Bytes,
    /// What its files take on disk. What they share with those of others counts too, because they keep it once those are gone.
    pub disk_size: Bytes,
}

/// A paused sandbox whose memory stays in RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSaved {
    /// The sandbox.
    pub incarnation: Incarnation,
    /// Why it could not be saved.
    pub reason: String,
}

/// What a pause keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Memory and files. Resumes instantly, or from disk, where a node that can save memory puts it after a while.
    Memory,
    /// Only the files. The processes end, and a resume starts a new guest.
    Filesystem,
}

/// Why an incarnation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A client or the server killed it.
    Killed,
    /// Its guest died.
    GuestDied,
    /// The kernel killed its guest because it ran out of memory.
    OutOfMemory,
    /// The host was rebooted.
    HostRebooted,
    /// The process that owned it is gone, for example a killed `isopod run`.
    OwnerGone,
    /// It runs, but a new server could not take it over, or the socket that leads to its guest was removed.
    GuestUnreachable,
}

/// An event of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// An incarnation has ended, and everything of it is removed.
    Ended { incarnation: Incarnation, reason: EndReason },
}

/// Current use of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time since the start, in microseconds.
    pub cpu_micros: u64,
    /// Memory in use, without what the kernel can reclaim.
    pub memory: u64,
    /// Page cache charged to the sandbox.
    pub cache: u64,
    /// Disk space used by its own layer, in bytes.
    pub disk: u64,
    /// The limit of `disk`.
    pub disk_total: u64,
    /// The number of processes and threads.
    pub pids: u64,
}

/// What to connect to inside a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The guest's HTTP and RPC service.
    Guest,
    /// The code interpreter's HTTP service.
    Interpreter,
    /// The program that listens on this TCP port of the loopback address, or of all addresses.
    Port(u16),
}

/// A byte stream into a sandbox.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// The socket, if it can also carry descriptors.
    fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Stream for UnixStream {
    fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl Stream for TcpStream {}

impl Stream for DuplexStream {}

/// The sandboxes that a node has prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// The pool of each template in use.
    pub templates: Vec<TemplatePoolStatus>,
    /// How many more sandboxes this host has numbers for, where that is limited.
    pub free_slots: Option<u32>,
}

/// The prepared sandboxes of one template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplatePoolStatus {
    /// What they are made of.
    pub template: String,
    /// The number of sandboxes whose guest listens.
    pub ready: usize,
    /// The number of sandboxes whose first process waits to become the guest.
    pub prepared: usize,
    /// The target for `ready`.
    pub wanted_ready: usize,
    /// The target for `prepared`.
    pub wanted_prepared: usize,
}

/// A template that this node has or can build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateInfo {
    /// The name.
    pub name: String,
    /// Other names of the same template.
    pub aliases: Vec<String>,
    /// A one-line description.
    pub summary: String,
    /// When its current version was made.
    pub made_at: Option<SystemTime>,
    /// Its state.
    pub state: TemplateState,
}

impl TemplateInfo {
    /// Whether this is its name or an alias.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// The state of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateState {
    /// Ready to use.
    Ready,
    /// Ready to use, but a part of it could not be installed.
    Reduced {
        /// What failed.
        reason: String,
    },
    /// It is being built.
    Building {
        /// The number of finished steps, and of all steps. Zero if that is not known yet.
        done: u32,
        total: u32,
        /// The current step.
        message: String,
    },
    /// The node builds it on first use.
    NotBuilt,
}

/// Why a sandbox was not created. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The template does not exist on this node.
    #[error("unknown template {0:?}")]
    UnknownTemplate(String),
    /// The snapshot does not exist on this node.
    #[error("unknown snapshot {0}")]
    UnknownSnapshot(SnapshotId),
    /// The snapshot's memory cannot be restored here, for example because the host's programs have changed since.
    #[error("cannot restore the snapshot's memory: {0}")]
    Memory(String),
    /// This node cannot restore memory at all. The text says why and what to do about it.
    #[error("this server cannot restore the snapshot's memory: {0}")]
    NoMemory(String),
    /// The template is being built; retry later.
    #[error("template {template:?} is being built: {progress}")]
    TemplateNotReady {
        /// The template.
        template: String,
        /// The progress of the build.
        progress: String,
    },
    /// This host cannot provide or enforce the limits.
    #[error("limits: {0}")]
    Limits(String),
    /// The mounts are not valid.
    #[error("mounts: {0}")]
    Mounts(String),
    /// The host is full; a later attempt may succeed.
    #[error("the host is full: {0}")]
    Full(String),
    /// The workspace cannot be mounted now; a later attempt may succeed.
    #[error("the workspace is not available: {0}")]
    Workspace(String),
    /// A sandbox with this id exists.
    #[error("sandbox {0} already exists")]
    Exists(SandboxId),
    /// The operation failed.
    #[error("could not start the sandbox")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why an operation on a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The sandbox is not on this node, or this incarnation has ended.
    #[error("sandbox {0} is not on this node")]
    NotFound(Incarnation),
    /// The operation is not possible in this state.
    #[error("sandbox {incarnation} is {state:?}")]
    WrongState { incarnation: Incarnation, state: NodeState },
    /// It still runs: a process in it is stuck in a system call, for example on the workspace.
    #[error("sandbox {0} could not be stopped in time")]
    NotStopped(Incarnation),
    /// Its memory cannot be saved or restored, for a reason that lies in its processes or in its host. It goes on as before.
    #[error("the memory of sandbox {incarnation} cannot be saved or restored: {reason}")]
    Memory { incarnation: Incarnation, reason: String },
    /// This node cannot save or restore memory at all. The reason says why and what to do about it.
    #[error("this server cannot save or restore the memory of sandbox {incarnation}: {reason}")]
    NoMemory { incarnation: Incarnation, reason: String },
    /// Its workspace cannot be mounted now; a later attempt may succeed.
    #[error("the workspace of sandbox {incarnation} is not available: {reason}")]
    Workspace { incarnation: Incarnation, reason: String },
    /// The operation failed.
    #[error("could not {what} sandbox {incarnation}")]
    Failed {
        what: &'static str,
        incarnation: Incarnation,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a connection into a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The sandbox is not on this node, or this incarnation has ended.
    #[error("sandbox {0} is not on this node")]
    NotFound(Incarnation),
    /// The sandbox is paused: resume it first.
    #[error("sandbox {0} is paused")]
    Paused(Incarnation),
    /// No program listens on this port.
    #[error("port {port} of sandbox {incarnation} is not open")]
    Refused { incarnation: Incarnation, port: u16 },
    /// The operation failed.
    #[error("could not reach sandbox {incarnation}")]
    Failed {
        incarnation: Incarnation,
        #[source]
        source: io::Error,
    },
}

/// A machine that runs sandboxes.
#[async_trait]
pub trait NodeApi: Send + Sync + 'static {
    /// Creates a sandbox and waits until its guest answers. On error nothing is left of it.
    async fn create(&self, spec: SandboxSpec) -> Result<Incarnation, CreateError>;

    /// Waits until sandboxes of a template can be created, but not longer than a client usually waits for an answer. Creates
    /// nothing, so a caller may stop waiting at any time.
    async fn wait_for_template(&self, template: &str) -> Result<(), CreateError>;

    /// Ends an incarnation and removes everything of it. Succeeds if it is already gone.
    async fn kill(&self, incarnation: &Incarnation) -> Result<(), NodeError>;

    /// Pauses a running sandbox. With `Filesystem` its processes end, and its files stay with this incarnation; a frozen sandbox
    /// can be paused this way too, and then loses its memory.
    async fn pause(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError>;

    /// Resumes a paused sandbox. Returns a new incarnation if its processes had to be started again.
    async fn resume(&self, incarnation: &Incarnation) -> Result<Incarnation, NodeError>;

    /// Why memory cannot be saved on this node, with what to do about it. `None` if it can.
    async fn no_memory_snapshots(&self) -> Option<String> {
        Some("this node cannot save memory".to_owned())
    }

    /// Takes a snapshot of a running sandbox under a new id. The sandbox stands still for a moment and goes on. After an error,
    /// there is no snapshot.
    async fn snapshot(
        &self,
        incarnation: &Incarnation,
        id: &SnapshotId,
        kind: SnapshotKind,
    ) -> Result<NodeSnapshot, NodeError> {
        let _ = (id, kind);
        let reason = "this node cannot take snapshots".to_owned();
        Err(NodeError::Memory { incarnation: incarnation.clone(), reason })
    }

    /// Saves the memory of all paused sandboxes that have it in RAM, and returns those that could not be saved.
    async fn save_paused(&self) -> Vec<NotSaved> {
        Vec::new()
    }

    /// The snapshots on this node.
    async fn snapshots(&self) -> Vec<NodeSnapshot> {
        Vec::new()
    }

    /// Removes a snapshot. Sandboxes that were created from it stay. Succeeds if it is already gone.
    async fn remove_snapshot(&self, id: &SnapshotId) -> io::Result<()> {
        let _ = id;
        Ok(())
    }

    /// Ends the processes of a running sandbox and starts it again from a snapshot of it, with its id, network, limits and
    /// tokens. Returns the new incarnation. After [`NodeError::Memory`], [`NodeError::NoMemory`] and
    /// [`NodeError::WrongState`] it goes on as before.
    async fn rollback(&self, incarnation: &Incarnation, snapshot: &InitialSnapshot) -> Result<Incarnation, NodeError> {
        let _ = snapshot;
        let reason = "this node cannot put a sandbox back to a snapshot".to_owned();
        Err(NodeError::Memory { incarnation: incarnation.clone(), reason })
    }

    /// Replaces the network policy of a sandbox.
    async fn set_network(&self, incarnation: &Incarnation, policy: NetworkPolicy) -> Result<(), NodeError>;

    /// Current use of resources.
    async fn usage(&self, incarnation: &Incarnation) -> Result<Usage, NodeError>;

    /// Opens a byte stream into a sandbox.
    async fn dial(&self, incarnation: &Incarnation, target: Target) -> Result<Box<dyn Stream>, DialError>;

    /// All sandboxes on this node, also those that an earlier server process created.
    async fn list(&self) -> Vec<NodeSandbox>;

    /// Waits for the next event. `None` when the node shuts down. Events are for a single reader.
    async fn next_event(&self) -> Option<NodeEvent>;

    /// How much memory is left for new sandboxes, for admission and display.
    async fn free_memory(&self) -> Bytes;

    /// What was made before somebody asks, for display. A node that makes nothing ahead has nothing to tell.
    async fn pool_status(&self) -> PoolStatus {
        PoolStatus::default()
    }

    /// The templates that this node has or can build.
    async fn templates(&self) -> Vec<TemplateInfo>;

    /// Builds a template and waits for the result. A slow reader of `events` slows the build down. After `cancel` or a failure,
    /// nothing is left except steps that the next build can reuse. A node that cannot build returns an error.
    async fn build_template(
        &self,
        spec: BuildSpec,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<BuiltTemplate, BuildError> {
        let _ = (spec, events, cancel);
        Err(BuildError {
            failure: BuildFailure::Internal,
            phase: BuildPhase::Base,
            place: None,
            message: "this node does not build templates".to_owned(),
        })
    }

    /// The built templates on this node. [`SandboxSpec::template`] accepts their ids.
    async fn built_templates(&self) -> Vec<KeptTemplate> {
        Vec::new()
    }

    /// Writes a built template as an image. If the caller stops waiting, the work ends, and nothing is left of it.
    async fn export_template(&self, spec: ExportSpec) -> Result<ExportedImage, ExportError> {
        Err(ExportError::NotFound(spec.template))
    }

    /// Removes a built template. Layers that other templates share stay.
    async fn remove_template(&self, id: &str) -> Result<(), RemoveTemplateError> {
        Err(RemoveTemplateError::NotFound(id.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_in_a_record_of_an_earlier_version_is_its_id() {
        let id = SnapshotId::from_random([7; 20]);
        let read = |text: String| serde_json::from_str::<InitialSnapshot>(&text).unwrap();
        assert_eq!(read(format!("\"{id}\"")), InitialSnapshot { id: id.clone(), files_only: false });
        for files_only in [false, true] {
            let snapshot = InitialSnapshot { id: id.clone(), files_only };
            assert_eq!(read(serde_json::to_string(&snapshot).unwrap()), snapshot);
        }
        assert!(serde_json::from_str::<InitialSnapshot>("{\"id\": \"../x\"}").is_err());
    }
}
