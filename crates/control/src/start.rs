//! Assembles the core of a server: adopted sandboxes, templates, and background tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use isopod_api::{Authenticator, LocatedRoutes};
use isopod_outbound::Trust;
use isopod_peer::Cluster;
use isopod_store::StoreError;
use isopod_wire::LimitsError;
use isopod_wire::node::NodeApi;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::config::ServeConfig;
use crate::edge::{Domains, Edge, proxy_from_inside};
use crate::http::{ApiSettings, App, BrowserRules};
use crate::lifecycle::{
    Fleet, FleetSettings, Journal, reconcile, run_idle_close, run_output, run_recheck, run_sampler,
};
use crate::listener::{Clustered, Connections, ListenerSettings};
use crate::membership::run_membership;
use crate::templates::Catalogue;
use isopod_files::FileStore;
use isopod_files::workspace::Workspace;
use isopod_identity::TokenCheck;
use isopod_webhooks::{Poster, run_deliveries};

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store and the node could not be reconciled.
    #[error("could not adopt the existing sandboxes")]
    Reconcile(#[source] StoreError),
    /// The configured limits are impossible on any host.
    #[error("the limits for sandboxes are invalid")]
    Limits(#[from] LimitsError),
}

/// The core of a server. Its tasks end when the caller's token is cancelled.
#[derive(Debug)]
pub struct Core {
    pub fleet: Arc<Fleet>,
    pub catalogue: Arc<Catalogue>,
    pub background: JoinSet<()>,
    pub journal: JournalWriter,
}

/// The task that writes logs and events of sandboxes.
#[derive(Debug)]
pub struct JournalWriter(JoinHandle<()>);

const JOURNAL_TIMEOUT: Duration = Duration::from_secs(5);

impl Core {
    /// Adopts the sandboxes of a node and a store that no other server uses.
    ///
    /// # Errors
    /// If the settings are invalid, or the store fails.
    pub async fn open(
        config: &ServeConfig,
        node: Arc<dyn NodeApi>,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        config.sandbox_limits.check()?;
        let (journal, writer) = Journal::new(config.store.clone());
        let journal_writer = JournalWriter(tokio::spawn(writer));
        let fleet = Fleet::new(config.store.clone(), node, journal, fleet_settings(config), stop.clone());
        let fleet = Arc::new(fleet);
        let found = reconcile(&fleet).await.map_err(StartError::Reconcile)?;
        tracing::info!(
            adopted = found.adopted,
            ended = found.ended,
            removed = found.removed,
            "reconciled the store and the node"
        );
        let (store, node, limits) = (config.store.clone(), Arc::clone(&fleet.node), config.sandbox_limits);
        let catalogue =
            Arc::new(Catalogue::new(store, node, config.builds, limits, config.features.clone(), stop.clone()));
        let background = start_background(config, &fleet, stop);
        Ok(Self { fleet, catalogue, background, journal: journal_writer })
    }
}

impl JournalWriter {
    /// Waits until everything is written. Controllers drop their handles of the journal when they stop.
    pub async fn finish(self) {
        let _ = tokio::time::timeout(JOURNAL_TIMEOUT, self.0).await;
    }
}

/// Creates the state that API handlers share.
pub fn open_app(config: &ServeConfig, fleet: Arc<Fleet>, catalogue: Arc<Catalogue>) -> App {
    let check = |tokens| TokenCheck::new(tokens, config.webhook_authorities.clone());
    let tokens = config.team_tokens.clone().map(check);
    let authenticator = Authenticator::new(config.store.clone(), tokens, config.open_metrics);
    let with_files = |workspace: Workspace| (workspace.clone(), Arc::new(FileStore::new(workspace, config.files)));
    let settings = ApiSettings {
        domain: config.domain.clone(),
        domains: Domains::new(&config.domain, &config.other_domains),
        webhook_policy: config.webhook_policy(),
        sandbox_networks: config.sandbox_networks.clone(),
        share_build_cache: config.share_build_cache,
        allow_host_base: config.allow_host_base,
        node_name: config.node_name.clone(),
    };
    let workspace = config.workspace.clone().map(with_files);
    App::new(settings, fleet, catalogue, workspace, Arc::new(authenticator))
}

/// Creates the connection handler: requests for sandboxes go to the edge, all others to `api`. In a cluster, what another
/// server has goes there.
pub fn open_connections(
    config: &ServeConfig,
    app: &App,
    api: Router,
    cluster: Option<(Arc<Cluster>, LocatedRoutes)>,
) -> Connections {
    let domains = Domains::new(&config.domain, &config.other_domains);
    let browsers = BrowserRules {
        domains: domains.clone(),
        allowed_origins: config.allowed_origins.clone(),
        allowed_hosts: config.allowed_hosts.clone(),
    };
    let edge = edge_of(domains, app);
    let settings = ListenerSettings {
        limits: config.connections,
        tls: config.tls.clone(),
        plain_beside_tls: config.plain_beside_tls,
        unacknowledged: config.unacknowledged,
        clustered: cluster.map(|(cluster, routes)| Clustered { cluster, routes }),
    };
    Connections::new(edge, browsers, api, settings)
}

/// The way into sandboxes for a client in this process. It names them by the routing headers.
pub fn open_edge(config: &ServeConfig, app: &App) -> Router {
    let edge = Arc::new(edge_of(Domains::new(&config.domain, &config.other_domains), app));
    Router::new().fallback(move |request| async move { proxy_from_inside(&edge, request).await })
}

fn edge_of(domains: Domains, app: &App) -> Edge {
    Edge { fleet: Arc::clone(&app.fleet), domains, tokens: app.authenticator.tokens.clone() }
}

fn fleet_settings(config: &ServeConfig) -> FleetSettings {
    FleetSettings {
        team_limits: config.team_limits,
        tiers: config.tiers.clone(),
        features: config.features.clone(),
        sandbox_limits: config.sandbox_limits,
        max_lifetime: config.max_lifetime,
        create_timeout: config.create_timeout,
        memory_timeout: config.memory_timeout,
        node_timeout: config.node_timeout,
        connections_per_sandbox: config.connections.per_sandbox,
        upstream_idle: config.connections.upstream_idle,
    }
}

fn start_background(config: &ServeConfig, fleet: &Arc<Fleet>, stop: &CancellationToken) -> JoinSet<()> {
    let mut background = JoinSet::new();
    background.spawn(run_sampler(Arc::clone(fleet), config.sample_every, config.retention));
    background.spawn(run_output(Arc::clone(fleet), config.sample_every));
    background.spawn(run_idle_close(Arc::clone(fleet)));
    background.spawn(run_recheck(Arc::clone(fleet), config.recheck_every));
    let follower = Arc::clone(fleet);
    background.spawn(async move { follower.follow_node().await });
    let poster = Poster::new(config.webhook_policy(), Trust::new(config.webhook_authorities.clone()));
    background.spawn(run_deliveries(config.store.clone(), poster, stop.clone()));
    background.spawn(run_membership(config.store.clone(), config.lease, stop.clone()));
    background
}
