//! Opens the node and implements the node API.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use isopod_checkpoint::{Criu, PackedMemory};
use isopod_disk::{DiskKind, DiskOptions};
use isopod_image::registry::RegistrySettings;
use isopod_isolation::backend::Backend;
use isopod_network::NetworkConfig;
use isopod_wire::build::{
    self, BuildError, BuildEvent, BuildSpec, ExportError, ExportSpec, ExportedImage, KeptTemplate, RemoveTemplateError,
};
use isopod_wire::node::{
    CreateError, DialError, Incarnation, InitialSnapshot, NodeApi, NodeError, NodeEvent, NodeSandbox, NodeSnapshot,
    NotSaved, PauseMode, PoolStatus, SandboxSpec, SnapshotKind, Stream, Target, TemplateInfo, Usage,
};
use isopod_wire::{Bytes, Limits, NetworkPolicy, SnapshotId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::admission::available_memory;
use crate::base::{BaseError, BaseOptions, HostEnvironment};
use crate::build::TemplateBuilder;
use crate::guest_program;
use crate::home::{Home, HomeError, HomeKind};
use crate::host::{Host, HostError};
use crate::images::Images;
use crate::pool::PoolSize;
use crate::provision::Provisioner;
use crate::sandbox::{Sandboxes, SandboxesConfig, maintain_workspaces};
use crate::slot::Slot;
use crate::spawner::{SpawnerProcess, SpawnerProgram};
use crate::state::StateRoot;
use crate::sweep::{SweepReport, Sweeper, sweep};
use crate::template::{Existing, Layer, Recipe, Step, Template, find_recipe, remove_unfinished};
use crate::workspace::WorkspaceServer;

/// How often a server sweeps by default.
pub const DEFAULT_SWEEP: Duration = Duration::from_secs(60);

/// How often the host's packages are checked for changes.
const TEMPLATE_CHECK: Duration = Duration::from_secs(10);

/// How many unused networks a server keeps for its next sandboxes.
const MAX_RECYCLED_NETWORKS: usize = 16;

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Server or command.
    pub home: HomeKind,
    /// This program, run as a spawner.
    pub spawner: SpawnerProgram,
    /// How many sandboxes to keep ready.
    pub pool: PoolSize,
    /// Templates to prepare at once, in the background. Others are prepared on first use.
    pub prepare: Vec<String>,
    /// The limits of a sandbox in the pool.
    pub default_limits: Limits,
    /// How to build the base template.
    pub base: BaseOptions,
    /// Which of the host's settings sandboxes get.
    pub host_environment: HostEnvironment,
    /// The environment from which those settings are taken.
    pub variables: BTreeMap<String, String>,
    /// How to set up the disk.
    pub disk: DiskOptions,
    /// Where images come from.
    pub registries: RegistrySettings,
    /// How often a server sweeps.
    pub sweep_every: Duration,
    /// The address pool of sandboxes. `None` for the default.
    pub pool_network: Option<isopod_wire::Cidr>,
    /// Private networks that sandboxes may reach if their policy allows it.
    pub private_networks: Vec<isopod_wire::Cidr>,
    /// Serves the workspace to sandboxes. `None` if there is no workspace.
    pub workspace: Option<Arc<dyn WorkspaceServer>>,
    /// The program that saves and restores memory, or why there is none, with what to do about it.
    pub criu: Result<PathBuf, String>,
    /// How long the memory of a paused sandbox stays in RAM before it is saved. `None` for as long as it is paused.
    pub save_paused_after: Option<Duration>,
    /// How long saved memory rests before it is packed. `None` if it never is.
    pub pack_memory_after: Option<Duration>,
    /// How much of the host's memory to keep free, by saving paused sandboxes before their time. 0 for none.
    pub keep_memory_free: Bytes,
    /// Whether sandboxes of built templates start from saved memory, where that is faster.
    pub start_images: bool,
}

/// Why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The host lacks something.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The home cannot be opened.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The base template could not be built.
    #[error("could not build the base template")]
    Base(#[from] BaseError),
    /// No spawner.
    #[error("could not start the spawner")]
    Spawner(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The guest program could not be loaded.
    #[error("could not load the guest program")]
    Guest(#[source] io::Error),
    /// The image store cannot be used.
    #[error("could not open the image store")]
    Images(#[source] isopod_image::StoreError),
    /// The remains of an earlier process could not be read.
    #[error("could not read what an earlier process left")]
    Sweep(#[source] io::Error),
}

/// The progress of preparing a template.
#[derive(Clone, Debug)]
pub struct TemplateProgress {
    /// Finished steps.
    pub done: u32,
    /// All steps.
    pub total: u32,
    /// The current step.
    pub message: String,
}

impl From<Step> for TemplateProgress {
    fn from(Step { done, total, message }: Step) -> Self {
        Self { done, total, message }
    }
}

/// A template of [`NodeConfig::prepare`], after its preparation.
#[derive(Clone, Debug)]
pub struct PreparedTemplate {
    /// Its own name, whatever alias was asked for.
    pub name: &'static str,
    /// How it went.
    pub outcome: Prepared,
}

/// How the preparation of a template went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Sandboxes of it can be created.
    Ready,
    /// Sandboxes of it can be created, but lack what its recipe installs, for this reason.
    Reduced(String),
    /// It is not there. The next create tries again.
    Failed(String),
}

/// A template that is ready.
#[derive(Clone, Debug)]
pub struct BuiltTemplate {
    /// Its own name, even if it was requested by an alias.
    pub name: &'static str,
    /// Its layer.
    pub layer: String,
    /// Whether it was built by this call.
    pub is_new: bool,
}

/// Why a template was not built. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum BuildTemplateError {
    /// No recipe has that name.
    #[error("there is no template {0:?} that could be built")]
    Unknown(String),
    /// A step failed.
    #[error("could not build template {name}")]
    Failed {
        /// The template.
        name: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A node that runs sandboxes.
#[derive(Debug)]
pub struct Node {
    sandboxes: Arc<Sandboxes>,
    builder: TemplateBuilder,
    /// What is made ready in the background.
    prepared: Vec<&'static Recipe>,
}

impl Node {
    /// Opens the node of a state directory: adopts running sandboxes, removes what no record claims, and fills the
    /// pool. If the host has changed, this takes as long as building the base template. Call it inside a Tokio runtime.
    pub async fn open(state: StateRoot, config: NodeConfig) -> Result<Self, OpenError> {
        Self::open_with(state, config, None).await
    }

    /// As [`Node::open`], with another isolation backend than the spawner's namespaces.
    pub async fn open_with(
        state: StateRoot,
        config: NodeConfig,
        backend: Option<Arc<dyn Backend>>,
    ) -> Result<Self, OpenError> {
        let images = Images::open(state.path(), config.registries.clone()).map_err(OpenError::Images)?;
        let blocking_config = config.clone();
        let opened = tokio::task::spawn_blocking(move || open_parts(state, &blocking_config, backend)).await;
        let (provisioner, template) = opened.map_err(|error| OpenError::Sweep(io::Error::other(error)))??;
        let prepared: Vec<_> = config.prepare.iter().filter_map(|name| find_recipe(name)).collect();
        let sandboxes_config = SandboxesConfig {
            limits: config.default_limits,
            pool_size: config.pool,
            base: config.base,
            criu: config.criu.and_then(|path| Criu::open(&path)).map(Arc::new),
            save_paused_after: config.save_paused_after,
            start_images: config.start_images,
        };
        let sandboxes = Sandboxes::new(provisioner, template, sandboxes_config).map_err(OpenError::Sweep)?;
        sandboxes.adopt().await.map_err(OpenError::Sweep)?;
        sandboxes.keep_memory_free(config.keep_memory_free);
        sandboxes.pack_memory_after(config.pack_memory_after);
        maintain_workspaces(&sandboxes);
        sandboxes.template_pools.base().pool.start();
        prepared.iter().for_each(|&recipe| sandboxes.start_opening(recipe));
        refresh_templates_periodically(&sandboxes);
        if config.home == HomeKind::Server {
            sweep_periodically(&sandboxes, config.sweep_every);
        }
        // A server that is to prepare nothing is one that does nothing before it is asked to.
        if config.home == HomeKind::Server && !config.prepare.is_empty() {
            sandboxes.try_memory_later(prepared.clone());
        }
        Ok(Self { sandboxes, builder: TemplateBuilder::new(images), prepared })
    }

    /// Waits until every template of [`NodeConfig::prepare`] is open or has failed. `on_step` is told how far those are that
    /// must be built first, and nothing about the others.
    pub async fn wait_until_prepared(&self, on_step: impl Fn(&'static str, TemplateProgress)) -> Vec<PreparedTemplate> {
        let mut prepared = Vec::new();
        for &recipe in &self.prepared {
            let opened = self.sandboxes.wait_until_open(recipe, |step| on_step(recipe.name, step.into())).await;
            let outcome = match opened {
                Ok(template_pool) => template_pool.reduced.clone().map_or(Prepared::Ready, Prepared::Reduced),
                Err(error) => Prepared::Failed(error.to_string()),
            };
            prepared.push(PreparedTemplate { name: recipe.name, outcome });
        }
        prepared
    }

    /// Waits until the pool has this size.
    pub async fn wait_for_pool(&self, size: PoolSize) {
        while self.pool_filled().ready < size.ready || self.pool_filled().prepared < size.prepared {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Where sandboxes write on this host.
    pub fn disk_kind(&self) -> DiskKind {
        self.sandboxes.provisioner.host.disk.kind()
    }

    /// Why disk usage of sandboxes cannot be limited on this host, and what to do about it.
    pub fn no_disk_limit(&self) -> Option<String> {
        self.sandboxes.provisioner.host.disk.no_limit().map(ToString::to_string)
    }

    /// The number of sandboxes in the pool.
    pub fn pool_filled(&self) -> PoolSize {
        self.sandboxes.template_pools.base().pool.filled()
    }

    /// The guest's socket of a sandbox, for tools on this machine.
    pub fn guest_socket(&self, incarnation: &Incarnation) -> Option<PathBuf> {
        self.sandboxes.guest_socket(incarnation)
    }

    /// The pid of a sandbox's first process on the host.
    pub fn init_pid(&self, incarnation: &Incarnation) -> Option<u32> {
        self.sandboxes.init_pid(incarnation)
    }

    /// Builds a template if it does not exist, or rebuilds it. Calls `on_step` with the progress.
    pub async fn build_template(
        &self,
        name: &str,
        rebuild: bool,
        on_step: impl Fn(TemplateProgress),
    ) -> Result<BuiltTemplate, BuildTemplateError> {
        let recipe = find_recipe(name).ok_or_else(|| BuildTemplateError::Unknown(name.to_owned()))?;
        let facts = self.sandboxes.template_pools.base().template();
        let layers = recipe.layers(facts.facts(), self.sandboxes.state_path());
        let top = layers.more.as_ref().unwrap_or(&layers.core).clone();
        if !rebuild && Layer::open_stack(&self.sandboxes.templates_directory(), &top).is_ok() {
            return Ok(BuiltTemplate { name: recipe.name, layer: top, is_new: false });
        }
        let existing = if rebuild { Existing::Replace } else { Existing::Take };
        let built = self.sandboxes.build_all_layers(recipe, &layers, existing, |step| on_step(step.into())).await;
        built.map_err(|error| BuildTemplateError::Failed { name: recipe.name, source: Box::new(error) })?;
        Ok(BuiltTemplate { name: recipe.name, layer: top, is_new: true })
    }

    /// Tries whether memory can be saved and restored on this host, in sandboxes of its own. The error says why not.
    ///
    /// # Errors
    /// If it cannot, or if that cannot be tried now.
    pub async fn try_memory(&self) -> Result<(), String> {
        self.sandboxes.try_memory().await.map_err(|error| isopod_wire::error_chain(&error))
    }

    /// Ends the processes of all sandboxes because the host shuts down. Returns how many sandboxes there were. The next server
    /// reports their end.
    pub async fn end_with_host(&self) -> usize {
        self.sandboxes.end_with_host().await
    }

    /// Closes the node. The sandboxes of a server keep running. Those of a command end.
    pub async fn close(self) {
        self.sandboxes.close().await;
    }
}

/// Checks periodically whether the host's packages have changed.
fn refresh_templates_periodically(sandboxes: &Arc<Sandboxes>) {
    let sandboxes = Arc::downgrade(sandboxes);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TEMPLATE_CHECK).await;
            let Some(sandboxes) = sandboxes.upgrade() else { return };
            let _ = tokio::task::spawn_blocking(move || sandboxes.refresh_templates()).await;
        }
    });
}

/// Sweeps periodically for what a killed command or a failed step of ours has left.
fn sweep_periodically(sandboxes: &Arc<Sandboxes>, every: Duration) {
    let sandboxes = Arc::downgrade(sandboxes);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(sandboxes) = sandboxes.upgrade() else { return };
            let _ = tokio::task::spawn_blocking(move || sandboxes.sweep()).await;
        }
    });
}

fn open_parts(
    state: StateRoot,
    config: &NodeConfig,
    backend: Option<Arc<dyn Backend>>,
) -> Result<(Provisioner, Arc<Template>), OpenError> {
    let home = Home::open(&state, config.home.clone())?;
    let mut network = NetworkConfig::new(state.tag().parse().map_err(HostError::from)?);
    if let Some(pool) = config.pool_network {
        network.pool = pool;
    }
    network.private_networks.clone_from(&config.private_networks);
    let host = Host::open(state, network, &config.disk)?;
    match open_on(&host, &home, config, backend) {
        Ok(Parts { backend, guest, environment, certificates, template }) => {
            let packed = PackedMemory::new(home.chunks());
            let (host, home) = (Arc::new(host), Arc::new(home));
            Ok((Provisioner { host, home, backend, guest, environment, certificates, packed }, template))
        }
        Err(error) => {
            // Nothing was started, so remove what was set up, unless sandboxes need it.
            host.close();
            Err(error)
        }
    }
}

/// The parts of a node besides its host and its home.
struct Parts {
    backend: Arc<dyn Backend>,
    guest: OwnedFd,
    environment: BTreeMap<String, String>,
    certificates: Option<Vec<u8>>,
    template: Arc<Template>,
}

fn open_on(
    host: &Host,
    home: &Home,
    config: &NodeConfig,
    backend: Option<Arc<dyn Backend>>,
) -> Result<Parts, OpenError> {
    if let Some(workspace) = &config.workspace {
        // Nothing has set it before: the host was opened just now.
        let _ = host.workspace.set(Arc::clone(workspace));
    }
    if config.home == HomeKind::Server {
        host.recycled_networks.set_capacity(MAX_RECYCLED_NETWORKS);
        let opened = host.recycled_directories.open(&home.path().join("spare"));
        opened.map_err(OpenError::Sweep)?;
    }
    let template = Template::base(&host.state.layers(), &config.base)?;
    let backend = match backend {
        Some(backend) => backend,
        None => start_spawner(home, config)?,
    };
    let sweeper = if config.home == HomeKind::Server { Sweeper::Server } else { Sweeper::Other };
    let report = sweep(host, sweeper).map_err(OpenError::Sweep)?;
    if report != SweepReport::default() {
        tracing::info!(homes = report.homes, executions = report.executions, "removed leftovers of earlier processes");
    }
    if config.home == HomeKind::Server
        && let Err(error) = remove_unfinished(&host.state.templates())
    {
        tracing::warn!(%error, "could not remove leftovers of builds");
    }
    let guest = guest_program::sealed().map_err(OpenError::Guest)?;
    let environment = template.host_environment(config.host_environment, config.variables.clone().into_iter());
    let certificates = if config.host_environment.certificates { host_certificates(&config.variables) } else { None };
    Ok(Parts { backend, guest, environment, certificates, template })
}

/// The bundle of certificates that this host trusts.
fn host_certificates(variables: &BTreeMap<String, String>) -> Option<Vec<u8>> {
    const USUAL: &[&str] = &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
    let named = ["SSL_CERT_FILE", "CURL_CA_BUNDLE"].iter().filter_map(|name| variables.get(*name).map(String::as_str));
    named.chain(USUAL.iter().copied()).find_map(|path| std::fs::read(path).ok())
}

fn start_spawner(home: &Home, config: &NodeConfig) -> Result<Arc<dyn Backend>, OpenError> {
    let spawner = SpawnerProcess::new(home.path(), config.spawner.clone());
    spawner.ensure().map_err(|error| OpenError::Spawner(Box::new(error)))?;
    Ok(Arc::new(spawner))
}

#[async_trait]
impl NodeApi for Node {
    async fn create(&self, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        self.sandboxes.create(spec).await
    }

    async fn wait_for_template(&self, template: &str) -> Result<(), CreateError> {
        self.sandboxes.template_pool(template).await.map(drop)
    }

    async fn kill(&self, incarnation: &Incarnation) -> Result<(), NodeError> {
        self.sandboxes.kill(incarnation).await
    }

    async fn pause(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError> {
        self.sandboxes.pause(incarnation, mode).await?;
        if mode == PauseMode::Memory {
            self.sandboxes.save_memory_later(incarnation);
        }
        Ok(())
    }

    async fn resume(&self, incarnation: &Incarnation) -> Result<Incarnation, NodeError> {
        self.sandboxes.resume(incarnation).await
    }

    async fn no_memory_snapshots(&self) -> Option<String> {
        self.sandboxes.no_memory_snapshots()
    }

    async fn snapshot(
        &self,
        incarnation: &Incarnation,
        id: &SnapshotId,
        kind: SnapshotKind,
    ) -> Result<NodeSnapshot, NodeError> {
        self.sandboxes.snapshot(incarnation, id, kind).await
    }

    async fn save_paused(&self) -> Vec<NotSaved> {
        self.sandboxes.save_all_paused().await
    }

    async fn snapshots(&self) -> Vec<NodeSnapshot> {
        self.sandboxes.list_snapshots()
    }

    async fn remove_snapshot(&self, id: &SnapshotId) -> io::Result<()> {
        self.sandboxes.remove_snapshot(id).await;
        Ok(())
    }

    async fn rollback(&self, incarnation: &Incarnation, snapshot: &InitialSnapshot) -> Result<Incarnation, NodeError> {
        self.sandboxes.rollback(incarnation, snapshot).await
    }

    async fn set_network(&self, incarnation: &Incarnation, policy: NetworkPolicy) -> Result<(), NodeError> {
        self.sandboxes.set_network(incarnation, policy).await
    }

    async fn usage(&self, incarnation: &Incarnation) -> Result<Usage, NodeError> {
        self.sandboxes.usage(incarnation).await
    }

    async fn dial(&self, incarnation: &Incarnation, target: Target) -> Result<Box<dyn Stream>, DialError> {
        self.sandboxes.dial(incarnation, target).await
    }

    async fn list(&self) -> Vec<NodeSandbox> {
        self.sandboxes.list().await
    }

    async fn next_event(&self) -> Option<NodeEvent> {
        self.sandboxes.next_event().await
    }

    async fn free_memory(&self) -> Bytes {
        available_memory()
    }

    async fn pool_status(&self) -> PoolStatus {
        let claims = tokio::task::spawn_blocking(Slot::count_claims).await;
        let taken = claims.ok().and_then(Result::ok);
        PoolStatus {
            templates: self.sandboxes.template_pools.statuses(),
            free_slots: taken.map(|taken| Slot::COUNT.saturating_sub(taken)),
        }
    }

    async fn templates(&self) -> Vec<TemplateInfo> {
        self.sandboxes.template_pools.infos()
    }

    async fn build_template(
        &self,
        spec: BuildSpec,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<build::BuiltTemplate, BuildError> {
        self.builder.build(&self.sandboxes, spec, events, cancel).await
    }

    async fn built_templates(&self) -> Vec<KeptTemplate> {
        self.sandboxes.built_templates().await
    }

    async fn export_template(&self, spec: ExportSpec) -> Result<ExportedImage, ExportError> {
        self.builder.export(&self.sandboxes.templates_directory(), spec).await
    }

    async fn remove_template(&self, id: &str) -> Result<(), RemoveTemplateError> {
        self.sandboxes.remove_template(id).await
    }
}
