//! All sandboxes of a node.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_checkpoint::Criu;
use isopod_isolation::ExitWatcher;
use isopod_wire::node::{Incarnation, NodeError, NodeEvent, NodeSandbox};
use isopod_wire::{Limits, SandboxId};
use tokio::sync::mpsc;

use super::build_recipe::is_of_a_build;
use super::criu_program::CriuProgram;
use super::memory_trial::MemoryTrial;
use super::snapshot::Snapshots;
use super::start_images::StartImages;
use super::{Inner, Sandbox};
use crate::base::BaseOptions;
use crate::guest_request::GUEST_SOCKET;
use crate::home::HomeKind;
use crate::pool::{Pool, PoolSize};
use crate::provision::Provisioner;
use crate::sweep::{SweepReport, Sweeper, sweep};
use crate::template::{BASE, Template};
use crate::template_pool::{Entry, TemplatePool, TemplatePools};

/// Each writes as much as the sandbox has memory.
const MAX_SAVES: usize = 2;

/// The sandboxes of a node, and what is needed to create more.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    pub(crate) provisioner: Arc<Provisioner>,
    pub(crate) template_pools: TemplatePools,
    /// The limits of pooled sandboxes, and the size of a pool.
    pub(super) limits: Limits,
    pub(super) pool_size: PoolSize,
    /// How the base template is built, to notice that the host has changed.
    pub(super) base: BaseOptions,
    by_id: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    pub(super) snapshots: Snapshots,
    pub(super) start_images: StartImages,
    /// What saves memory, or why it can't be saved here.
    pub(super) criu: CriuProgram,
    pub(super) memory_trial: MemoryTrial,
    /// How long the memory of a paused sandbox stays in RAM. `None` for as long as it is paused.
    pub(super) save_paused_after: Option<Duration>,
    /// How many paused sandboxes may be saved at the same time.
    pub(super) saves: tokio::sync::Semaphore,
    pub(super) exits: ExitWatcher,
    pub(super) events: mpsc::UnboundedSender<NodeEvent>,
    event_reader: tokio::sync::Mutex<mpsc::UnboundedReceiver<NodeEvent>>,
}

/// The settings for sandboxes of a node.
#[derive(Debug)]
pub(crate) struct SandboxesConfig {
    /// The limits of pooled sandboxes.
    pub(crate) limits: Limits,
    /// The size of a pool.
    pub(crate) pool_size: PoolSize,
    /// How to build the base template.
    pub(crate) base: BaseOptions,
    /// What saves memory, or why it can't be saved here.
    pub(crate) criu: Result<Arc<Criu>, String>,
    /// How long the memory of a paused sandbox stays in RAM.
    pub(crate) save_paused_after: Option<Duration>,
    /// Whether sandboxes of built templates start from saved memory.
    pub(crate) start_images: bool,
}

impl Sandboxes {
    pub(crate) fn new(
        provisioner: Provisioner,
        template: Arc<Template>,
        config: SandboxesConfig,
    ) -> std::io::Result<Arc<Self>> {
        let SandboxesConfig { limits, pool_size, base, criu, save_paused_after, start_images } = config;
        let (events, event_reader) = mpsc::unbounded_channel();
        let provisioner = Arc::new(provisioner);
        let pool = Pool::new(Arc::clone(&provisioner), Arc::clone(&template), limits, pool_size);
        let template_pools = TemplatePools::default();
        template_pools.set(BASE, Entry::Open(TemplatePool::new(BASE, template, pool, None)));
        Ok(Arc::new(Self {
            provisioner,
            template_pools,
            limits,
            pool_size,
            base,
            by_id: Mutex::default(),
            snapshots: Snapshots::default(),
            start_images: StartImages::new(start_images),
            criu: CriuProgram::new(criu),
            memory_trial: MemoryTrial::default(),
            save_paused_after,
            saves: tokio::sync::Semaphore::new(MAX_SAVES),
            events,
            exits: ExitWatcher::start()?,
            event_reader: tokio::sync::Mutex::new(event_reader),
        }))
    }

    /// Removes what no record claims.
    pub(crate) fn sweep(&self) {
        match sweep(&self.provisioner.host, Sweeper::Server) {
            Ok(report) if report == SweepReport::default() => {}
            Ok(report) => {
                tracing::info!(
                    homes = report.homes,
                    executions = report.executions,
                    "removed leftovers of earlier processes"
                );
            }
            Err(error) => tracing::warn!(%error, "could not look for leftovers"),
        }
    }

    pub(super) fn by_id(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Sandbox>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox, if this execution of it is here.
    pub(super) fn find(&self, incarnation: &Incarnation) -> Option<Arc<Sandbox>> {
        self.by_id().get(&incarnation.sandbox).filter(|found| found.incarnation == *incarnation).cloned()
    }

    pub(super) fn get(&self, incarnation: &Incarnation) -> Result<Arc<Sandbox>, NodeError> {
        self.find(incarnation).ok_or_else(|| NodeError::NotFound(incarnation.clone()))
    }

    /// Removes an ended execution from the list. A later execution of the same sandbox stays.
    pub(super) fn forget(&self, incarnation: &Incarnation) {
        let mut sandboxes = self.by_id();
        if sandboxes.get(&incarnation.sandbox).is_some_and(|found| found.incarnation == *incarnation) {
            sandboxes.remove(&incarnation.sandbox);
        }
    }

    /// Lists the sandboxes that have an owner. Those of builds are internal.
    pub(crate) async fn list(&self) -> Vec<NodeSandbox> {
        let mut list = self.list_all().await;
        list.retain(|sandbox| !is_of_a_build(&sandbox.spec));
        list
    }

    async fn list_all(&self) -> Vec<NodeSandbox> {
        let sandboxes: Vec<_> = self.by_id().values().cloned().collect();
        let mut list = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            list.extend(show(&sandbox).await);
        }
        list
    }

    pub(crate) async fn next_event(&self) -> Option<NodeEvent> {
        self.event_reader.lock().await.recv().await
    }

    pub(crate) fn guest_socket(&self, incarnation: &Incarnation) -> Option<PathBuf> {
        Some(self.find(incarnation)?.directory.join(GUEST_SOCKET))
    }

    pub(crate) fn init_pid(&self, incarnation: &Incarnation) -> Option<u32> {
        let sandbox = self.find(incarnation)?;
        let inner = sandbox.inner.try_lock().ok()?;
        inner.record.init.as_ref().map(|init| init.pid)
    }

    /// Closes the node and its pools. The sandboxes of a command end with it.
    pub(crate) async fn close(self: Arc<Self>) {
        let is_server = *self.provisioner.home.kind() == HomeKind::Server;
        self.provisioner.packed.close();
        self.start_images.close();
        self.start_images.wait().await;
        self.memory_trial.close().await;
        for NodeSandbox { incarnation, spec, .. } in self.list_all().await {
            if (!is_server || is_of_a_build(&spec))
                && let Err(error) = self.kill(&incarnation).await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not end a sandbox");
            }
        }
        self.by_id().clear();
        for template_pool in self.template_pools.close() {
            template_pool.pool.close().await;
        }
        let provisioner = Arc::clone(&self.provisioner);
        drop(self);
        let _ = tokio::task::spawn_blocking(move || leave(provisioner)).await;
    }
}

/// What a sandbox is, or what it was before the change that is under way, which may take long.
async fn show(sandbox: &Sandbox) -> Option<NodeSandbox> {
    let last_shown = sandbox.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let inner = match (sandbox.inner.try_lock(), last_shown) {
        (Ok(inner), _) => inner,
        (Err(_), Some(shown)) => return Some(shown),
        (Err(_), None) => sandbox.inner.lock().await,
    };
    let shown = describe(&sandbox.incarnation, &inner);
    sandbox.shown.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&shown);
    shown
}

fn describe(incarnation: &Incarnation, inner: &Inner) -> Option<NodeSandbox> {
    let spec = inner.record.spec.clone().filter(|_| !inner.ending)?;
    Some(NodeSandbox { incarnation: incarnation.clone(), spec, state: inner.state() })
}

/// How long to wait for background work, such as a check of the host's packages or a zygote that is starting.
const LAST_USERS_DEADLINE: Duration = Duration::from_secs(15);

/// Releases what the process holds, unless something in it still uses it.
fn leave(provisioner: Arc<Provisioner>) {
    let deadline = Instant::now() + LAST_USERS_DEADLINE;
    // A zygote holds only the host.
    let is_used =
        |provisioner: &Arc<Provisioner>| Arc::strong_count(provisioner) > 1 || Arc::strong_count(&provisioner.host) > 1;
    while is_used(&provisioner) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let unused = if is_used(&provisioner) { None } else { Arc::into_inner(provisioner) };
    let Some(Provisioner { host, home, backend, guest, .. }) = unused else {
        tracing::warn!("something still uses the node; leaving its setup on the host in place");
        return;
    };
    drop((backend, guest));
    if let Ok(home) = Arc::try_unwrap(home)
        && *home.kind() != HomeKind::Server
    {
        home.remove();
    }
    if let Ok(host) = Arc::try_unwrap(host) {
        host.close();
    }
}
