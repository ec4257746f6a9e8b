//! What the core of a server needs to be told, collected from the modules that go by it. Everything has a default but the
//! store; nothing here reads the environment.

use std::time::Duration;

use isopod_outbound::Policy;
use isopod_store::{Retention, Store};
use isopod_wire::{Cidr, Limits};

use crate::delivery::Unacknowledged;
use crate::files::FileLimits;
use crate::lifecycle::TeamLimits;
use crate::listener::ConnectionLimits;
use crate::templates::BuildLimits;
use crate::tls::TlsIdentity;
use crate::workspace::Workspace;
use isopod_identity::TeamTokens;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where everything is recorded.
    pub store: Store,
    /// Speak TLS with this certificate; none means plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// With TLS: who speaks plain HTTP is answered too, on the same ports. Only where nobody else hears it.
    pub plain_beside_tls: bool,
    /// `host[:port]` under which sandboxes have their names: `{port}-{id}.{domain}`.
    pub domain: String,
    /// Other domains that clients may know the server by. Who comes by one of them is told of sandboxes below it.
    pub other_domains: Vec<String>,
    /// Web pages of these origins may call the API, besides those of loopback and of the domain itself.
    pub allowed_origins: Vec<String>,
    /// Browsers may reach the API under these host names, besides loopback, addresses and the domain itself.
    pub allowed_hosts: Vec<String>,
    /// Where requests may go that users name: webhooks, and agents of workflows.
    pub outbound: Policy,
    /// Private networks that sandboxes may be allowed to reach.
    pub sandbox_networks: Vec<Cidr>,
    /// Webhooks may go to loopback and private addresses.
    pub allow_internal_webhooks: bool,
    /// `/metrics` answers without a key; otherwise it wants an admin's.
    pub open_metrics: bool,
    /// Authorities in PEM that https webhooks may be certified by, besides those that this machine trusts.
    pub webhook_authorities: Vec<u8>,
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
    /// Teams get what the same steps of other teams' builds made, secrets that programs made among it.
    pub share_build_cache: bool,
    /// What builds of templates may use.
    pub builds: BuildLimits,
    /// How long records are kept.
    pub retention: Retention,
    /// How often the use of resources is recorded.
    pub sample_every: Duration,
    /// How often the store and the node are compared.
    pub recheck_every: Duration,
    /// Tells what of a stream has not reached a client that is gone. By default all that was sent counts as received.
    pub unacknowledged: Unacknowledged,
    /// How long a stopping server waits for requests under way.
    pub drain: Duration,
    /// Files that sandboxes and the host share; none means that there are none.
    pub workspace: Option<Workspace>,
    /// What may be stored there through the API.
    pub files: FileLimits,
}

impl ServeConfig {
    /// The defaults, recording into `store`.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            tls: None,
            plain_beside_tls: false,
            domain: "isopod.localhost".to_owned(),
            other_domains: Vec::new(),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            outbound: Policy::default(),
            sandbox_networks: Vec::new(),
            allow_internal_webhooks: false,
            open_metrics: false,
            webhook_authorities: Vec::new(),
            team_tokens: None,
            team_limits: TeamLimits::default(),
            sandbox_limits: Limits::default(),
            max_lifetime: HOUR * 24,
            create_timeout: Duration::from_secs(55),
            node_timeout: Duration::from_secs(30),
            connections: ConnectionLimits::default(),
            share_build_cache: false,
            builds: BuildLimits::default(),
            retention: Retention::default(),
            sample_every: Duration::from_secs(5),
            recheck_every: Duration::from_secs(30),
            unacknowledged: |_| Ok(0),
            drain: Duration::from_secs(10),
            workspace: None,
            files: FileLimits::default(),
        }
    }
}

impl ServeConfig {
    pub(crate) fn webhook_policy(&self) -> Policy {
        if self.allow_internal_webhooks { Policy::open() } else { self.outbound.clone() }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
