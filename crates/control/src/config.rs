//! The settings of a server's core, collected from the modules that declare them. Everything except the store has a
//! default. Nothing here reads the environment.

use std::time::Duration;

use isopod_outbound::Policy;
use isopod_peer::ClusterSettings;
use isopod_store::service::Tiers;
use isopod_store::{Retention, Store};
use isopod_wire::{Cidr, FeatureGrants, Limits};

use crate::delivery::Unacknowledged;
use crate::lifecycle::TeamLimits;
use crate::listener::ConnectionLimits;
use crate::templates::BuildLimits;
use crate::tls::TlsIdentity;
use isopod_files::FileLimits;
use isopod_files::workspace::Workspace;
use isopod_identity::TeamTokens;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The database that holds all records.
    pub store: Store,
    /// The certificate to serve TLS with. `None` serves plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// With TLS, also answers plain HTTP on the same ports. Safe only where nobody can listen in.
    pub plain_beside_tls: bool,
    /// `host[:port]` below which sandboxes have their names: `{port}-{id}.{domain}`.
    pub domain: String,
    /// Other domains by which clients may know the server. A response to a request for one of them names sandboxes
    /// below it.
    pub other_domains: Vec<String>,
    /// Origins whose web pages may call the API, in addition to loopback and the domain itself.
    pub allowed_origins: Vec<String>,
    /// Host names under which browsers may reach the API, in addition to loopback, IP addresses and the domain itself.
    pub allowed_hosts: Vec<String>,
    /// The addresses that users' requests may go to: those of webhooks and of agents in workflows.
    pub outbound: Policy,
    /// Private networks that sandboxes may be allowed to reach.
    pub sandbox_networks: Vec<Cidr>,
    /// The kernel features that teams may have, and templates whose sandboxes have some without asking.
    pub features: FeatureGrants,
    /// Whether webhooks may go to loopback and private addresses.
    pub allow_internal_webhooks: bool,
    /// Whether `/metrics` needs no key. Otherwise it requires an admin key.
    pub open_metrics: bool,
    /// PEM certificates of authorities to trust for https webhooks, in addition to those that this machine trusts.
    pub webhook_authorities: Vec<u8>,
    /// The team tokens to accept in addition to keys.
    pub team_tokens: Option<TeamTokens>,
    /// The limits of one team.
    pub team_limits: TeamLimits,
    /// Limits that admins give to teams by their names.
    pub tiers: Tiers,
    /// The resource limits of one sandbox.
    pub sandbox_limits: Limits,
    /// How long a sandbox may run without a pause.
    pub max_lifetime: Duration,
    /// How long a node may take to create a sandbox.
    pub create_timeout: Duration,
    /// How long a node may take to save the memory of a sandbox, or to restore it.
    pub memory_timeout: Duration,
    /// How long a node may take for anything else.
    pub node_timeout: Duration,
    /// The limits of one connection.
    pub connections: ConnectionLimits,
    /// Whether teams share results of equal build steps, including any secrets that the steps' programs generated.
    pub share_build_cache: bool,
    /// Whether builds may use this host's files for an image of another version that can't be had.
    pub allow_host_base: bool,
    /// The limits of template builds.
    pub builds: BuildLimits,
    /// How long records are kept.
    pub retention: Retention,
    /// The interval at which resource usage is recorded.
    pub sample_every: Duration,
    /// The interval at which the store and the node are compared.
    pub recheck_every: Duration,
    /// Returns how much of a stream has not reached a client that is gone. By default, everything sent counts as
    /// received.
    pub unacknowledged: Unacknowledged,
    /// The name of this server for people.
    pub node_name: String,
    /// How long the other servers on the database take this one for reachable after it last renewed its lease.
    pub lease: Duration,
    /// The cluster that forwards requests among its servers. `None` if this server is in none.
    pub cluster: Option<ClusterSettings>,
    /// How long a stopping server waits for requests in progress.
    pub drain: Duration,
    /// The files that sandboxes and the host share. `None` disables them.
    pub workspace: Option<Workspace>,
    /// The limits for files stored there through the API.
    pub files: FileLimits,
}

impl ServeConfig {
    /// Creates the default configuration with this store.
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
            features: FeatureGrants::default(),
            allow_internal_webhooks: false,
            open_metrics: false,
            webhook_authorities: Vec::new(),
            team_tokens: None,
            team_limits: TeamLimits::default(),
            tiers: Tiers::default(),
            sandbox_limits: Limits::default(),
            max_lifetime: HOUR * 24,
            create_timeout: Duration::from_secs(55),
            // More than a node gives CRIU.
            memory_timeout: Duration::from_secs(150),
            node_timeout: Duration::from_secs(30),
            connections: ConnectionLimits::default(),
            share_build_cache: false,
            allow_host_base: false,
            builds: BuildLimits::default(),
            retention: Retention::default(),
            sample_every: Duration::from_secs(5),
            recheck_every: Duration::from_secs(30),
            unacknowledged: |_| Ok(0),
            node_name: "isopod".to_owned(),
            lease: Duration::from_secs(10),
            cluster: None,
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
