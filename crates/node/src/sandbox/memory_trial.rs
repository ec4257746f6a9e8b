//! Tries whether memory can be saved and restored on this host: a program in a sandbox of its own, with a child and a
//! connection between them, is saved and goes on in a copy of its sandbox.
//!
//! CRIU's version says nothing about the kernel. So a server tries it once in the background, when its templates are open. If
//! it fails, everything that needs memory is refused with the reason, instead of each call failing by itself. The trial takes no
//! sandbox from a pool, and its own are removed like those of a build.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use isopod_checkpoint::{TrialProgram, TrialProgramError};
use isopod_guest_client::guest::Guest;
use isopod_wire::node::{CreateError, Incarnation, NodeError, SnapshotKind};
use isopod_wire::{Bytes, Limits, NetworkPolicy, SnapshotId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Sandboxes;
use super::build_recipe::build_spec;
use super::save_memory::SPACE_LEFT;
use super::snapshot::Snapshot;
use crate::record::{Record, SnapshotRecord};
use crate::template::Recipe;

/// A host may be too busy for the first one.
const ATTEMPTS: u32 = 2;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(2);
const MEMORY: Bytes = Bytes(256 << 20);

/// Why a trial did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrialError {
    /// Memory cannot be saved or restored.
    #[error("{0}")]
    Memory(String),
    #[error("could not create a sandbox to try it in")]
    Create(#[source] CreateError),
    #[error("could not save a sandbox to try it")]
    Save(#[source] NodeError),
    #[error(transparent)]
    Program(TrialProgramError),
    #[error("the sandbox of the trial is gone")]
    Gone,
    #[error("there is too little space to try it on the state directory's disk")]
    Space,
}

/// The trial that runs in the background.
#[derive(Debug, Default)]
pub(super) struct MemoryTrial {
    tasks: TaskTracker,
    /// Cancelled when the node closes.
    closing: CancellationToken,
}

impl MemoryTrial {
    /// Begins none, and waits for one that has begun.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Sandboxes {
    /// Tries it in the background, once these templates are open, and uses CRIU no more if it does not work.
    pub(crate) fn try_memory_later(self: &Arc<Self>, prepared: Vec<&'static Recipe>) {
        if !self.criu.is_usable() {
            return;
        }
        let (sandboxes, closing) = (Arc::clone(self), self.memory_trial.closing.clone());
        self.memory_trial.tasks.spawn(async move {
            let prepared = async {
                for recipe in prepared {
                    let _ = sandboxes.wait_until_open(recipe, |_| {}).await;
                }
            };
            if closing.run_until_cancelled(prepared).await.is_some() {
                sandboxes.try_memory_and_give_up(&closing).await;
            }
        });
    }

    async fn try_memory_and_give_up(self: &Arc<Self>, closing: &CancellationToken) {
        for attempt in 1..=ATTEMPTS {
            let error = match self.try_memory().await {
                Ok(()) => return tracing::debug!("memory can be saved and restored on this host"),
                Err(error) => error,
            };
            if closing.is_cancelled() {
                return;
            }
            match (error, attempt) {
                (TrialError::Memory(reason), ATTEMPTS) => {
                    let reason = format!(
                        "CRIU does not work on this host: {reason}; `isopod doctor` tries it, and a restart of the server does so again"
                    );
                    tracing::warn!("pauses stay in RAM, and snapshots have files only: {reason}");
                    self.criu.give_up(reason);
                }
                (error, ATTEMPTS) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "could not try whether memory can be saved");
                }
                _ => {
                    let _ = closing.run_until_cancelled(tokio::time::sleep(ATTEMPT_PAUSE)).await;
                }
            }
        }
    }

    /// Tries it once.
    pub(crate) async fn try_memory(self: &Arc<Self>) -> Result<(), TrialError> {
        let free = self.provisioner.host.disk.host_free_space().map_err(|_| TrialError::Space)?;
        if free.0 < MEMORY.0 + SPACE_LEFT {
            return Err(TrialError::Space);
        }
        let template = self.template_pools.base().template();
        let source = self.create_on(template, spec()).await.map_err(TrialError::Create)?;
        let tried = self.save_and_restore(&source).await;
        self.remove_trial(&source).await;
        tried
    }

    async fn save_and_restore(self: &Arc<Self>, source: &Incarnation) -> Result<(), TrialError> {
        let program = TrialProgram::start(&self.guest_of(source)?).await?;
        let mark = |record: &mut Record| {
            let id = SnapshotId::from_random(random());
            record.snapshot = Some(SnapshotRecord { id, made_at: SystemTime::now(), bytes: 0, disk_bytes: 0 });
        };
        // It is not entered anywhere, so nobody else finds it.
        let snapshot = self.copy_running(source, SnapshotKind::Temporary, mark).await.map_err(not_saved)?;
        let record = snapshot.record.clone();
        let tried = match self.restore_copy(snapshot).await {
            Ok(copy) => {
                let went_on = async { Ok(program.check_restored(&self.guest_of(&copy)?).await?) }.await;
                self.remove_trial(&copy).await;
                went_on
            }
            Err(error) => Err(error),
        };
        self.discard_snapshot(record).await;
        tried
    }

    async fn restore_copy(self: &Arc<Self>, snapshot: Snapshot) -> Result<Incarnation, TrialError> {
        let memory = self.memory_of(&snapshot).map_err(not_restored)?;
        self.create_copy(snapshot, memory, spec()).await.map_err(not_restored)
    }

    fn guest_of(&self, incarnation: &Incarnation) -> Result<Guest, TrialError> {
        let socket = self.guest_socket(incarnation).ok_or(TrialError::Gone)?;
        Ok(Guest::over_unix(socket).with_user("user"))
    }

    async fn remove_trial(&self, incarnation: &Incarnation) {
        if let Err(error) = self.kill(incarnation).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%incarnation, error, "could not remove the sandbox of a trial");
        }
    }
}

fn spec() -> isopod_wire::node::SandboxSpec {
    let limits = Limits { memory: MEMORY, disk: None, ..Limits::default() };
    let network = NetworkPolicy { deny_internet: true, ..NetworkPolicy::default() };
    build_spec(limits, network, BTreeMap::new())
}

fn random() -> [u8; 20] {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("the kernel provides random numbers after boot");
    bytes
}

impl From<TrialProgramError> for TrialError {
    fn from(error: TrialProgramError) -> Self {
        match error {
            TrialProgramError::NotRestored(reason) => Self::Memory(reason),
            other => Self::Program(other),
        }
    }
}

fn not_saved(error: NodeError) -> TrialError {
    match error {
        NodeError::Memory { reason, .. } | NodeError::NoMemory { reason, .. } => TrialError::Memory(reason),
        other => TrialError::Save(other),
    }
}

fn not_restored(error: CreateError) -> TrialError {
    match error {
        CreateError::Memory(reason) | CreateError::NoMemory(reason) => TrialError::Memory(reason),
        other => TrialError::Create(other),
    }
}
