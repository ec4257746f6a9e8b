//! What a server needs to be told. Everything has a default but the store; nothing here reads the environment.

use std::time::Duration;

use isopod_wire::Limits;

use crate::backend::{RemoteBackend, ResilienceConfig};
use crate::{FileLimits, ServiceConfig, SessionSettings, Store, TeamTokens, TlsIdentity, Workspace};

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where everything is recorded.
    pub store: Store,
    /// Speak TLS with this certificate; none means plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// `host[:port]` under which sandboxes have their names: `{port}-{id}.{domain}`.
    pub domain: String,
    /// Web pages of these origins may call the API, besides those of loopback and of the domain itself.
    pub allowed_origins: Vec<String>,
    /// Browsers may reach the API under these host names, besides loopback, addresses and the domain itself.
    pub allowed_hosts: Vec<String>,
    /// Webhooks may go to loopback and private addresses.
    pub allow_internal_webhooks: bool,
    /// Authorities in PEM that https webhooks may be certified by, besides those that this machine trusts.
    pub webhook_authorities: Vec<u8>,
    /// How workflows are run.
    pub runs: RunsConfig,
    /// People may ask in a team's name with tokens like these, besides keys.
    pub team_tokens: Option<TeamTokens>,
    /// What one team may use.
    pub team_limits: TeamLimits,
    /// What one sandbox gets.
    pub sandbox_limits: Limits,
    /// The longest that a sandbox runs without a pause.
    pub max_lifetime: Duration,
    /// How long a node may take to make a sandbox.
    pub create_timeout: Duration,
    /// How long a node may take for anything else.
    pub node_timeout: Duration,
    /// What one connection may do.
    pub connections: ConnectionLimits,
    /// What builds of templates may use.
    pub builds: BuildLimits,
    /// How long records are kept.
    pub retention: Retention,
    /// How often the use of resources is recorded.
    pub sample_every: Duration,
    /// How often the store and the node are compared.
    pub recheck_every: Duration,
    /// How long a stopping server waits for requests under way.
    pub drain: Duration,
    /// Files that sandboxes and the host share; none means that there are none.
    pub workspace: Option<Workspace>,
    /// What may be stored there through the API.
    pub files: FileLimits,
    /// How agents' sessions work.
    pub sessions: SessionSettings,
    /// How the sandbox service works.
    pub service: ServiceConfig,
    /// Where the sandboxes of the service come from instead of this server's own node.
    pub remote_backend: Option<RemoteBackend>,
    /// How patient the service is with its backend.
    pub resilience: ResilienceConfig,
}

/// How workflows are run.
#[derive(Clone, Debug)]
pub struct RunsConfig {
    /// The agent service: agents without a URL of their own are invoked there, and it is told when a run has ended.
    pub agent_url: Option<String>,
    /// Agents may be on loopback and private addresses. The agent service may always.
    pub allow_internal_agents: bool,
    /// Before the second attempt at a node; twice as long before each further one.
    pub retry_wait: Duration,
}

impl Default for RunsConfig {
    fn default() -> Self {
        Self { agent_url: None, allow_internal_agents: false, retry_wait: Duration::from_millis(500) }
    }
}

/// What one team may use.
#[derive(Clone, Copy, Debug)]
pub struct TeamLimits {
    /// Sandboxes that run at the same time.
    pub concurrent: u32,
    /// Creates per second in the long run.
    pub creates_per_second: u32,
    /// Creates at once.
    pub create_burst: u32,
}

/// What one connection may do.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at the same time.
    pub total: usize,
    /// Requests to one sandbox at the same time.
    pub per_sandbox: usize,
    /// From the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// Between two requests. The SDKs keep idle connections for five minutes and must not lose that race.
    pub idle_timeout: Duration,
    /// Size of a request's head.
    pub max_head: usize,
    /// Size of an API request's body. Bodies for sandboxes are not limited.
    pub max_body: usize,
}

/// What builds of templates may use.
#[derive(Clone, Copy, Debug)]
pub struct BuildLimits {
    /// Builds at the same time; others wait.
    pub at_once: usize,
    /// How long one may take.
    pub timeout: Duration,
    /// Size of one upload.
    pub upload: u64,
    /// Size of all uploads of a team that are kept.
    pub team_uploads: u64,
    /// How long uploads are kept after they were last used.
    pub uploads_kept: Duration,
}

/// How long records are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Log lines.
    pub logs: Duration,
    /// Samples of resource use.
    pub metrics: Duration,
    /// Lifecycle events.
    pub events: Duration,
    /// Sandboxes that have ended.
    pub ended: Duration,
    /// Answers to requests with an idempotency key.
    pub idempotency: Duration,
}

impl ServeConfig {
    /// The defaults, recording into `store`.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            tls: None,
            domain: "isopod.localhost".to_owned(),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            allow_internal_webhooks: false,
            webhook_authorities: Vec::new(),
            runs: RunsConfig::default(),
            team_tokens: None,
            team_limits: TeamLimits::default(),
            sandbox_limits: Limits::default(),
            max_lifetime: HOUR * 24,
            create_timeout: Duration::from_secs(45),
            node_timeout: Duration::from_secs(30),
            connections: ConnectionLimits::default(),
            builds: BuildLimits::default(),
            retention: Retention::default(),
            sample_every: Duration::from_secs(5),
            recheck_every: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            workspace: None,
            files: FileLimits::default(),
            sessions: SessionSettings::default(),
            service: ServiceConfig::default(),
            remote_backend: None,
            resilience: ResilienceConfig::default(),
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

impl Default for TeamLimits {
    fn default() -> Self {
        Self { concurrent: 1000, creates_per_second: 200, create_burst: 1000 }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            total: 20_000,
            per_sandbox: 1000,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(330),
            max_head: 256 << 10,
            max_body: 4 << 20,
        }
    }
}

impl Default for BuildLimits {
    fn default() -> Self {
        Self { at_once: 2, timeout: HOUR, upload: 4 << 30, team_uploads: 32 << 30, uploads_kept: HOUR * 24 * 14 }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            logs: HOUR * 24 * 7,
            metrics: HOUR * 24,
            events: HOUR * 24 * 7,
            ended: HOUR * 24 * 30,
            idempotency: HOUR * 24,
        }
    }
}
