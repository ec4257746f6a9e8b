//! The node API: what a machine that runs sandboxes does for those who decide about them.
//!
//! `isopod-node` implements it in process; a remote node will be another implementation. Every call names an
//! incarnation (sandbox and execution), every ending has a reason, and every call may be repeated without harm.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::build::{
    BuildError, BuildEvent, BuildFailure, BuildPhase, BuildSpec, BuiltTemplate, KeptTemplate, RemoveTemplateError,
};
use crate::{Bytes, ExecutionId, Limits, NetworkPolicy, SandboxId};

/// One life of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// The sandbox its owner knows.
    pub sandbox: SandboxId,
    /// This life of it.
    pub execution: ExecutionId,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sandbox, self.execution)
    }
}

/// The label of a sandbox that says whose it is. What a node keeps warm of a team's own template serves that team alone.
pub const TEAM_LABEL: &str = "isopod.team";

/// What to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The id its owner will use.
    pub sandbox: SandboxId,
    /// Id or name of a template that this node has.
    pub template: String,
    /// What it may use.
    pub limits: Limits,
    /// Whom it may talk to.
    pub network: NetworkPolicy,
    /// Variables that every process inside gets.
    pub env: BTreeMap<String, String>,
    /// The token that the guest asks for; none means that it answers everyone who can reach it.
    pub access_token: Option<Secret>,
    /// Words of the owner that the node keeps in the record and gives back after adoption, unread.
    pub labels: BTreeMap<String, String>,
    /// Parts of the workspace that it sees, made anew with every life of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<WorkspaceMount>,
}

/// A part of the workspace inside a sandbox. No other part can be named from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceMount {
    /// Where it is seen inside: an absolute path, made of directories that are made where they are missing.
    pub path: String,
    /// Which part: `executions/<id>` or `volumes/<id>`. It is made when it is not there.
    pub subtree: String,
    /// Nothing can be written through it.
    #[serde(default)]
    pub read_only: bool,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A sandbox as the node knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSandbox {
    /// Which life of which sandbox.
    pub incarnation: Incarnation,
    /// As given at create, with later changes of the network.
    pub spec: SandboxSpec,
    /// Running or not.
    pub state: NodeState,
}

/// Whether the processes of a sandbox run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Processes run, the guest answers.
    Running,
    /// Processes are frozen with their memory in place.
    Frozen,
    /// No processes; the files are kept.
    Stopped,
}

/// What is kept while a sandbox is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Memory and files: instant to resume, gone with a reboot of the host.
    Memory,
    /// Files only: processes end, a resume starts the guest anew.
    Filesystem,
}

/// Why a sandbox's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Someone asked for it.
    Killed,
    /// Its guest or init died.
    GuestDied,
    /// The kernel killed its init for want of memory.
    OutOfMemory,
    /// The host was started anew.
    HostRebooted,
    /// The process that owned it is gone (`isopod run` that was killed).
    OwnerGone,
}

/// What a node tells without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// A life is over and everything of it is gone.
    Ended { incarnation: Incarnation, reason: EndReason },
}

/// Present use of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time used since the start, in microseconds.
    pub cpu_micros: u64,
    /// Memory in use without what the kernel could drop.
    pub memory: u64,
    /// Page cache that is charged to the sandbox.
    pub cache: u64,
    /// Bytes written to its own layer.
    pub disk: u64,
    /// How much `disk` may grow to.
    pub disk_total: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// What can be dialled inside a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The guest's HTTP and RPC service.
    Guest,
    /// The code interpreter's HTTP service.
    Interpreter,
    /// Whatever listens on this TCP port of the sandbox's loopback (or any) address.
    Port(u16),
}

/// A byte stream into a sandbox.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What a node has made before somebody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// The shelves of each template in use.
    pub shelves: Vec<Shelf>,
    /// How many more sandboxes this host has numbers for, where that is limited.
    pub free_slots: Option<u32>,
}

/// The sandboxes of one template that wait to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shelf {
    /// What they are made of.
    pub template: String,
    /// Those whose guest listens.
    pub ready: usize,
    /// Those whose first process waits.
    pub prepared: usize,
    /// How many of both there should be.
    pub wanted_ready: usize,
    /// As above.
    pub wanted_prepared: usize,
}

/// A template that this node has or can make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateInfo {
    /// What it is called.
    pub name: String,
    /// Other names that mean the same.
    pub aliases: Vec<String>,
    /// What it is for, in a line.
    pub summary: String,
    /// When its present form was made.
    pub made_at: Option<SystemTime>,
    /// Whether it can be used.
    pub state: TemplateState,
}

impl TemplateInfo {
    /// Whether it is called so.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Whether a template can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateState {
    /// At once.
    Ready,
    /// At once, but without what could not be installed.
    Reduced {
        /// What went wrong.
        reason: String,
    },
    /// Soon.
    Building {
        /// Steps that are done, and how many there are; zero when that is not known yet.
        done: u32,
        total: u32,
        /// What is being done.
        message: String,
    },
    /// It is made when it is first asked for.
    NotBuilt,
}

/// Why a sandbox was not made. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// No such template here.
    #[error("template {0:?} is not known")]
    UnknownTemplate(String),
    /// It is being made; a later try will find it.
    #[error("template {template:?} is being built: {progress}")]
    TemplateNotReady {
        /// Which.
        template: String,
        /// How far it is.
        progress: String,
    },
    /// The limits cannot be had or not enforced here.
    #[error("limits: {0}")]
    Limits(String),
    /// The workspace cannot be mounted like that.
    #[error("mounts: {0}")]
    Mounts(String),
    /// The host has no room; a later try may find some.
    #[error("the host is full: {0}")]
    Full(String),
    /// A live sandbox has this id.
    #[error("sandbox {0} exists already")]
    Exists(SandboxId),
    /// Something broke on the way.
    #[error("could not start the sandbox")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why something was not done to a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Not here, or this life is over.
    #[error("sandbox {0} is not on this node")]
    NotFound(Incarnation),
    /// Not possible in its present state.
    #[error("sandbox {incarnation} is {state:?}")]
    WrongState { incarnation: Incarnation, state: NodeState },
    /// It runs on: something in it waits for a call that is not answered, such as one to the workspace.
    #[error("sandbox {0} could not be stopped in time")]
    NotStopped(Incarnation),
    /// Something broke on the way.
    #[error("could not {what} sandbox {incarnation}")]
    Failed {
        what: &'static str,
        incarnation: Incarnation,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why nothing answers inside.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Not here, or this life is over.
    #[error("sandbox {0} is not on this node")]
    NotFound(Incarnation),
    /// It is frozen or stopped: resume it first.
    #[error("sandbox {0} is paused")]
    Paused(Incarnation),
    /// Nobody listens on that port.
    #[error("port {port} of sandbox {incarnation} is not open")]
    Refused { incarnation: Incarnation, port: u16 },
    /// Something broke on the way.
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
    /// Makes a sandbox and waits until its guest answers. On an error nothing is left.
    async fn create(&self, spec: SandboxSpec) -> Result<Incarnation, CreateError>;

    /// Ends a life and removes everything of it. Ending what is already gone is fine.
    async fn kill(&self, incarnation: &Incarnation) -> Result<(), NodeError>;

    /// Stops a running sandbox. With `Filesystem` the execution ends but its files stay with this incarnation; that can be
    /// done to a frozen one too, which then loses its memory.
    async fn pause(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError>;

    /// Runs a paused sandbox again. The incarnation is a new one where processes had to be started anew.
    async fn resume(&self, incarnation: &Incarnation) -> Result<Incarnation, NodeError>;

    /// Replaces the network policy of a live sandbox.
    async fn set_network(&self, incarnation: &Incarnation, policy: NetworkPolicy) -> Result<(), NodeError>;

    /// Present use of resources.
    async fn usage(&self, incarnation: &Incarnation) -> Result<Usage, NodeError>;

    /// Opens a byte stream to something inside.
    async fn dial(&self, incarnation: &Incarnation, target: Target) -> Result<Box<dyn Stream>, DialError>;

    /// Everything that is here, also what an earlier server process made.
    async fn list(&self) -> Vec<NodeSandbox>;

    /// The next event; `None` when the node shuts down. Events wait for one reader.
    async fn next_event(&self) -> Option<NodeEvent>;

    /// How much more memory may be promised, for admission and display.
    async fn free_memory(&self) -> Bytes;

    /// What was made before somebody asks, for display. A node that makes nothing ahead has nothing to tell.
    async fn stock(&self) -> Stock {
        Stock::default()
    }

    /// The templates that this node has or can make.
    async fn templates(&self) -> Vec<TemplateInfo>;

    /// Builds a template and waits for the end of it. Whoever reads `events` slowly slows the build down. After
    /// `cancel`, or when it fails, nothing is left but steps that the next build can use. A node that cannot build
    /// says so.
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

    /// The templates that builds left here. Their ids are names for [`SandboxSpec::template`].
    async fn built_templates(&self) -> Vec<KeptTemplate> {
        Vec::new()
    }

    /// Removes what a build left. Layers that other templates share stay.
    async fn remove_template(&self, id: &str) -> Result<(), RemoveTemplateError> {
        Err(RemoveTemplateError::NotFound(id.to_owned()))
    }
}
