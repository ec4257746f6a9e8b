//! Tries whether memory can be saved and restored on this host: a program in a sandbox of its own, with a child and a
//! connection between them, is saved and goes on in a copy of its sandbox.
//!
//! CRIU's version says nothing about the kernel. So a server tries it once in the background, when its templates are open. If
//! it fails, everything that needs memory is refused with the reason, instead of each call failing by itself. The trial takes no
//! sandbox from a pool, and its own are removed like those of a build.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use isopod_guest_client::guest::{Event, Guest, GuestError, Signal, StartProcess};
use isopod_wire::node::{CreateError, Incarnation, NodeError};
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
/// How long the program may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const MEMORY: Bytes = Bytes(256 << 20);

/// Answers `ready`, and on `SIGTERM` what its child has sent back. A host without Python has a pipe for the connection.
const PROGRAM: &str = "command -v python3 > /dev/null && exec python3 -c \"
import os, signal, socket
ours, theirs = socket.socketpair()
# The signal goes to the child too, which has to be there to answer.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    ours.close()
    theirs.sendall(theirs.recv(20))
    os._exit(0)
theirs.close()
def ask(*_):
    ours.sendall(b'went on')
    print(ours.recv(20).decode(), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, ask)
print('ready', flush=True)
while True: signal.pause()\"
trap 'echo went on; exit' TERM
sleep 600 | cat > /dev/null &
echo ready
wait";
const READY: &str = "ready";
const WENT_ON: &str = "went on";

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
    #[error("could not talk to the sandbox of the trial")]
    Guest(#[from] GuestError),
    #[error("the program of the trial printed {0:?}")]
    Printed(String),
    #[error("the program of the trial took more than {ANSWER_TIMEOUT:?}")]
    Slow,
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
        let pid = start_program(&self.guest_of(source)?).await?;
        let mark = |record: &mut Record| {
            let id = SnapshotId::from_random(random());
            record.snapshot = Some(SnapshotRecord { id, made_at: SystemTime::now(), bytes: 0 });
        };
        let (record, directory) = self.copy_running(source, true, mark).await.map_err(not_saved)?;
        // Nobody else is to find it.
        let snapshot = Snapshot { record: record.clone(), directory };
        let tried = match self.restore_copy(snapshot).await {
            Ok(copy) => {
                let answered = self.ask_program(&copy, pid).await;
                self.remove_trial(&copy).await;
                answered
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

    /// Whether the program goes on: its child sends back what it gets.
    async fn ask_program(&self, copy: &Incarnation, pid: u32) -> Result<(), TrialError> {
        let guest = self.guest_of(copy)?;
        let asked = async {
            let process = guest.connect(pid).await?;
            process.handle().signal(Signal::Term).await?;
            Ok::<_, GuestError>(process.collect().await?.text())
        };
        let printed = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        match printed {
            Ok(Ok(text)) if text.trim().ends_with(WENT_ON) => Ok(()),
            Ok(Ok(text)) => Err(TrialError::Memory(format!("a restored program did not go on: it printed {text:?}"))),
            Ok(Err(error)) if error.is_not_found() => {
                Err(TrialError::Memory("a restored program did not come back".to_owned()))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(TrialError::Memory("a restored program did not go on".to_owned())),
        }
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

async fn start_program(guest: &Guest) -> Result<u32, TrialError> {
    let mut process = guest.start(StartProcess::shell(PROGRAM)).await?;
    let ready = async {
        let mut printed = Vec::new();
        while let Some(event) = process.next().await? {
            if let Event::Stdout(bytes) | Event::Stderr(bytes) = event {
                printed.extend_from_slice(&bytes);
            }
            if printed.ends_with(b"\n") {
                break;
            }
        }
        Ok::<_, GuestError>(String::from_utf8_lossy(&printed).into_owned())
    };
    let printed = tokio::time::timeout(ANSWER_TIMEOUT, ready).await.map_err(|_| TrialError::Slow)??;
    if printed.trim() == READY { Ok(process.pid()) } else { Err(TrialError::Printed(printed)) }
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
