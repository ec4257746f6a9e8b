//! All sandboxes of a node.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_wire::node::{Incarnation, NodeError, NodeEvent, NodeSandbox};
use isopod_wire::{Limits, SandboxId};
use tokio::sync::mpsc;

use super::build_recipe::is_of_a_build;
use super::{Life, Sandbox};
use crate::base::BaseOptions;
use crate::exits::ExitWatcher;
use crate::guest_request::GUEST_SOCKET;
use crate::home::HomeKind;
use crate::pool::{Pool, PoolSize};
use crate::provision::Provisioner;
use crate::sweep::{SweepReport, Sweeper, sweep};
use crate::template::{BASE, Template};
use crate::template_pool::{Entry, TemplatePool, TemplatePools};

/// The sandboxes of a node, and what is needed to make more.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) provisioner: Arc<Provisioner>,
    pub(crate) template_pools: TemplatePools,
    /// What a sandbox of a pool may use, and how many a pool holds.
    pub(super) limits: Limits,
    pub(super) pool_size: PoolSize,
    /// How the base template is made, to notice that the host has changed.
    pub(super) base: BaseOptions,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    pub(super) exits: ExitWatcher,
    pub(super) events: mpsc::UnboundedSender<NodeEvent>,
    event_reader: tokio::sync::Mutex<mpsc::UnboundedReceiver<NodeEvent>>,
}

/// How a node makes its sandboxes.
#[derive(Debug)]
pub(crate) struct FleetConfig {
    /// What a sandbox of a pool may use.
    pub(crate) limits: Limits,
    /// How many a pool holds.
    pub(crate) pool_size: PoolSize,
    /// How the base template is made.
    pub(crate) base: BaseOptions,
}

impl Fleet {
    pub(crate) fn new(
        provisioner: Provisioner,
        template: Arc<Template>,
        config: FleetConfig,
    ) -> std::io::Result<Arc<Self>> {
        let FleetConfig { limits, pool_size, base } = config;
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
            sandboxes: Mutex::default(),
            events,
            exits: ExitWatcher::start()?,
            event_reader: tokio::sync::Mutex::new(event_reader),
        }))
    }

    /// Removes what nobody claims.
    pub(crate) fn sweep(&self) {
        match sweep(&self.provisioner.host, Sweeper::Server) {
            Ok(report) if report == SweepReport::default() => {}
            Ok(report) => {
                tracing::info!(homes = report.homes, executions = report.executions, "removed what was left behind");
            }
            Err(error) => tracing::warn!(%error, "could not look for what was left behind"),
        }
    }

    pub(super) fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox, if this very life of it is here.
    pub(super) fn find(&self, incarnation: &Incarnation) -> Option<Arc<Sandbox>> {
        self.sandboxes().get(&incarnation.sandbox).filter(|found| found.incarnation == *incarnation).cloned()
    }

    pub(super) fn get(&self, incarnation: &Incarnation) -> Result<Arc<Sandbox>, NodeError> {
        self.find(incarnation).ok_or_else(|| NodeError::NotFound(incarnation.clone()))
    }

    /// Forgets a life that is over. A later life of the same sandbox stays.
    pub(super) fn forget(&self, incarnation: &Incarnation) {
        let mut sandboxes = self.sandboxes();
        if sandboxes.get(&incarnation.sandbox).is_some_and(|found| found.incarnation == *incarnation) {
            sandboxes.remove(&incarnation.sandbox);
        }
    }

    /// Those that have an owner outside: the sandboxes of builds are this node's own business.
    pub(crate) async fn list(&self) -> Vec<NodeSandbox> {
        let mut list = self.list_all().await;
        list.retain(|sandbox| !is_of_a_build(&sandbox.spec));
        list
    }

    async fn list_all(&self) -> Vec<NodeSandbox> {
        let sandboxes: Vec<_> = self.sandboxes().values().cloned().collect();
        let mut list = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            let life = sandbox.life.lock().await;
            list.extend(describe(&sandbox.incarnation, &life));
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
        let life = sandbox.life.try_lock().ok()?;
        life.record.init.as_ref().map(|init| init.pid)
    }

    /// Ends the node: the pool goes, and with a command also its sandboxes.
    pub(crate) async fn close(self: Arc<Self>) {
        let is_server = *self.provisioner.home.kind() == HomeKind::Server;
        for NodeSandbox { incarnation, spec, .. } in self.list_all().await {
            if (!is_server || is_of_a_build(&spec))
                && let Err(error) = self.kill(&incarnation).await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not end a sandbox");
            }
        }
        self.sandboxes().clear();
        for template_pool in self.template_pools.close() {
            template_pool.pool.close().await;
        }
        let provisioner = Arc::clone(&self.provisioner);
        drop(self);
        let _ = tokio::task::spawn_blocking(move || leave(provisioner)).await;
    }
}

fn describe(incarnation: &Incarnation, life: &Life) -> Option<NodeSandbox> {
    let spec = life.record.spec.clone().filter(|_| !life.ending)?;
    Some(NodeSandbox { incarnation: incarnation.clone(), spec, state: life.state() })
}

/// How long background work, such as a look at the host's packages or a zygote that gets warm, may still take.
const LAST_USERS_DEADLINE: Duration = Duration::from_secs(15);

/// Gives back what the process holds, as far as nobody else in it still uses it.
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
        tracing::warn!("something still uses the node, so what it set up on the host stays");
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
