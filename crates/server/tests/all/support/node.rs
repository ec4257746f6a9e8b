//! A node that simulates sandboxes: it keeps states, fails on demand, and serves a tiny guest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Seek as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use isopod_wire::build::{
    BuildError, BuildEvent, BuildSpec, BuiltTemplate, ExportError, ExportSpec, ExportedImage, KeptTemplate,
    RemoveTemplateError,
};
use isopod_wire::node::{
    CreateError, DialError, EndReason, Incarnation, InitialSnapshot, NodeApi, NodeError, NodeEvent, NodeSandbox,
    NodeSnapshot, NodeState, NotSaved, PauseMode, PoolStatus, SandboxSpec, SnapshotKind, Stream, Target, TemplateInfo,
    TemplatePoolStatus, TemplateState, Usage,
};
use isopod_wire::{Bytes, ExecutionId, INTERPRETER_PORT, NetworkPolicy, SandboxId, SnapshotId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::guest;

#[derive(Default)]
pub struct Faults {
    pub full: AtomicBool,
    pub create_fails: AtomicBool,
    pub pause_fails: AtomicBool,
    pub resume_fails: AtomicBool,
    pub kill_fails: AtomicBool,
    pub snapshot_fails: AtomicBool,
    pub remove_snapshot_fails: AtomicBool,
    /// Removing a snapshot takes until this is false.
    pub remove_snapshot_waits: AtomicBool,
    /// How many of the next creates from a snapshot fail.
    pub restores_fail: AtomicU64,
    /// Why the memory of no sandbox can be saved: what is in its processes.
    pub undumpable: Mutex<Option<String>>,
    /// Why this node cannot save memory at all.
    pub no_memory: Mutex<Option<String>>,
    /// Its templates are being built.
    pub builds: AtomicBool,
    /// Its templates are being built, for longer than it lets anybody wait.
    pub builds_too_long: AtomicBool,
    /// How many creates have begun to wait for a template.
    pub waits: AtomicU64,
    /// The duration of a create in milliseconds.
    pub create_takes: AtomicU64,
    /// The duration of a pause, a resume or a kill in milliseconds. The work is done at the end.
    pub change_takes: AtomicU64,
    /// Started calls of those.
    pub changes: AtomicU64,
    /// Its built templates contain its own files.
    pub templates_are_on_host: AtomicBool,
}

struct Made {
    found: NodeSandbox,
    connections: CancellationToken,
}

pub struct FakeNode {
    pub faults: Faults,
    pub open_ports: Mutex<BTreeSet<u16>>,
    /// Whether sandboxes have a code interpreter.
    pub has_interpreter: AtomicBool,
    /// The output of the processes of all its sandboxes.
    pub printed: Arc<guest::Printed>,
    pub creates: AtomicU64,
    pub dials: AtomicU64,
    /// The results of its builds.
    pub builder: super::builder::FakeBuilder,
    made: Mutex<HashMap<SandboxId, Made>>,
    snapshots: Mutex<BTreeMap<SnapshotId, NodeSnapshot>>,
    /// Started removals of snapshots.
    removals: Mutex<Vec<SnapshotId>>,
    executions: AtomicU64,
    /// The node does not die with a server.
    runtime: tokio::runtime::Handle,
    this: std::sync::Weak<Self>,
    events_in: mpsc::UnboundedSender<NodeEvent>,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<NodeEvent>>,
}

impl FakeNode {
    pub fn new() -> Arc<Self> {
        let (events_in, events) = mpsc::unbounded_channel();
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            runtime: tokio::runtime::Handle::current(),
            faults: Faults::default(),
            open_ports: Mutex::new(BTreeSet::from([8080])),
            has_interpreter: AtomicBool::new(true),
            printed: Arc::default(),
            creates: AtomicU64::new(0),
            dials: AtomicU64::new(0),
            builder: Default::default(),
            made: Mutex::default(),
            snapshots: Mutex::default(),
            removals: Mutex::default(),
            executions: AtomicU64::new(0),
            events_in,
            events: tokio::sync::Mutex::new(events),
        })
    }

    pub fn state_of(&self, id: &str) -> Option<NodeState> {
        self.made.lock().unwrap().get(&id.parse::<SandboxId>().unwrap()).map(|made| made.found.state)
    }

    pub fn spec_of(&self, id: &str) -> Option<SandboxSpec> {
        self.made.lock().unwrap().get(&id.parse::<SandboxId>().unwrap()).map(|made| made.found.spec.clone())
    }

    pub fn count(&self) -> usize {
        self.made.lock().unwrap().len()
    }

    /// Forgets its snapshots, as a new machine that a backup is restored on.
    pub fn lose_snapshots(&self) {
        self.snapshots.lock().unwrap().clear();
    }

    /// The snapshots that it keeps.
    pub fn kept_snapshots(&self) -> Vec<NodeSnapshot> {
        self.snapshots.lock().unwrap().values().cloned().collect()
    }

    /// The snapshots whose removal has begun, in that order.
    pub fn removals(&self) -> Vec<SnapshotId> {
        self.removals.lock().unwrap().clone()
    }

    /// The number of lives so far.
    pub fn executions(&self) -> u64 {
        self.executions.load(Ordering::Relaxed)
    }

    /// The sandbox dies by itself and the node reports it.
    pub fn die(&self, id: &str, reason: EndReason) {
        let made = self.made.lock().unwrap().remove(&id.parse::<SandboxId>().unwrap()).unwrap();
        made.connections.cancel();
        self.events_in.send(NodeEvent::Ended { incarnation: made.found.incarnation, reason }).unwrap();
    }

    /// The sandbox vanishes without a report.
    pub fn lose(&self, id: &str) {
        self.made.lock().unwrap().remove(&id.parse::<SandboxId>().unwrap());
    }

    /// Puts a sandbox into a state, like a call whose result was not seen.
    pub fn force_state(&self, id: &str, state: NodeState) {
        self.made.lock().unwrap().get_mut(&id.parse::<SandboxId>().unwrap()).unwrap().found.state = state;
    }

    async fn create_to_the_end(&self, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        tokio::time::sleep(Duration::from_millis(self.faults.create_takes.load(Ordering::Relaxed))).await;
        let is_known = self.templates().await.iter().any(|template| template.is_called(&spec.template));
        if !is_known && !self.builder.has(&spec.template) {
            return Err(CreateError::UnknownTemplate(spec.template));
        }
        if self.faults.full.load(Ordering::Relaxed) {
            return Err(CreateError::Full("no memory left".to_owned()));
        }
        if let Some(snapshot) = &spec.snapshot {
            self.restore(&snapshot.id, snapshot.files_only)?;
        }
        if self.faults.create_fails.load(Ordering::Relaxed) {
            return Err(CreateError::Failed("injected".into()));
        }
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: self.next_execution() };
        let found = NodeSandbox { incarnation: incarnation.clone(), spec, state: NodeState::Running };
        let made = Made { found, connections: CancellationToken::new() };
        self.made.lock().unwrap().insert(incarnation.sandbox.clone(), made);
        Ok(incarnation)
    }

    fn restore(&self, snapshot: &SnapshotId, files_only: bool) -> Result<(), CreateError> {
        let has_memory = self.snapshots.lock().unwrap().get(snapshot).map(|kept| kept.has_memory && !files_only);
        match (has_memory, self.faults.no_memory.lock().unwrap().clone()) {
            (None, _) => return Err(CreateError::UnknownSnapshot(snapshot.clone())),
            (Some(false), _) => return Ok(()),
            (Some(true), Some(reason)) => return Err(CreateError::NoMemory(reason)),
            (Some(true), None) => {}
        }
        let fails =
            self.faults.restores_fail.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match fails {
            Ok(_) => Err(CreateError::Memory("the library libc.so.6 has changed".to_owned())),
            Err(_) => Ok(()),
        }
    }

    fn snapshot_now(
        &self,
        incarnation: &Incarnation,
        id: &SnapshotId,
        kind: SnapshotKind,
    ) -> Result<NodeSnapshot, NodeError> {
        let with_memory = kind.has_memory();
        self.fault(&self.faults.snapshot_fails, "take a snapshot of", incarnation)?;
        if let (true, Some(reason)) = (with_memory, self.faults.undumpable.lock().unwrap().clone()) {
            return Err(NodeError::Memory { incarnation: incarnation.clone(), reason });
        }
        let taken = self.with(incarnation, |made| {
            if made.found.state != NodeState::Running {
                return Err(NodeError::WrongState { incarnation: incarnation.clone(), state: made.found.state });
            }
            Ok(NodeSnapshot {
                id: id.clone(),
                has_memory: with_memory,
                template: made.found.spec.template.clone(),
                limits: made.found.spec.limits,
                made_at: std::time::SystemTime::now(),
                memory_size: Bytes::mib(if with_memory { 3 } else { 0 }),
                disk_size: Bytes::mib(2),
            })
        })?;
        self.snapshots.lock().unwrap().insert(id.clone(), taken.clone());
        Ok(taken)
    }

    fn rollback_now(&self, incarnation: &Incarnation, snapshot: &InitialSnapshot) -> Result<Incarnation, NodeError> {
        if !self.snapshots.lock().unwrap().contains_key(&snapshot.id) {
            let source = "there is no such snapshot".into();
            return Err(NodeError::Failed { what: "roll back", incarnation: incarnation.clone(), source });
        }
        self.fault(&self.faults.resume_fails, "roll back", incarnation)?;
        if let (false, Some(reason)) = (snapshot.files_only, self.faults.undumpable.lock().unwrap().clone()) {
            return Err(NodeError::Memory { incarnation: incarnation.clone(), reason });
        }
        let anew = self.next_execution();
        self.with(incarnation, |made| {
            made.found.incarnation.execution = anew;
            Ok(made.found.incarnation.clone())
        })
    }

    /// Continues after the server that called has died.
    async fn slowly<T: Send + 'static>(&self, act: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let this = self.this.upgrade().unwrap();
        this.faults.changes.fetch_add(1, Ordering::Relaxed);
        let work = async move {
            tokio::time::sleep(Duration::from_millis(this.faults.change_takes.load(Ordering::Relaxed))).await;
            act(&this)
        };
        self.runtime.spawn(work).await.unwrap()
    }

    fn kill_now(&self, incarnation: &Incarnation) -> Result<(), NodeError> {
        self.fault(&self.faults.kill_fails, "kill", incarnation)?;
        let mut made = self.made.lock().unwrap();
        if made.get(&incarnation.sandbox).is_some_and(|made| made.found.incarnation == *incarnation) {
            let made = made.remove(&incarnation.sandbox).unwrap();
            made.connections.cancel();
            let _ =
                self.events_in.send(NodeEvent::Ended { incarnation: incarnation.clone(), reason: EndReason::Killed });
        }
        Ok(())
    }

    fn pause_now(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError> {
        self.fault(&self.faults.pause_fails, "pause", incarnation)?;
        self.with(incarnation, |made| {
            let stops_frozen = made.found.state == NodeState::Frozen && mode == PauseMode::Filesystem;
            if made.found.state != NodeState::Running && !stops_frozen {
                return Err(NodeError::WrongState { incarnation: incarnation.clone(), state: made.found.state });
            }
            made.found.state = match mode {
                PauseMode::Memory => NodeState::Frozen,
                PauseMode::Filesystem => NodeState::Stopped,
            };
            Ok(())
        })
    }

    fn save_paused_now(&self) -> Vec<NotSaved> {
        let undumpable = self.faults.undumpable.lock().unwrap().clone();
        let mut made = self.made.lock().unwrap();
        let frozen = made.values_mut().filter(|made| made.found.state == NodeState::Frozen);
        let mut not_saved = Vec::new();
        for made in frozen {
            match &undumpable {
                Some(reason) => {
                    not_saved.push(NotSaved { incarnation: made.found.incarnation.clone(), reason: reason.clone() });
                }
                None => made.found.state = NodeState::Saved,
            }
        }
        not_saved
    }

    fn resume_now(&self, incarnation: &Incarnation) -> Result<Incarnation, NodeError> {
        self.fault(&self.faults.resume_fails, "resume", incarnation)?;
        let anew = self.next_execution();
        self.with(incarnation, |made| {
            if matches!(made.found.state, NodeState::Stopped | NodeState::Saved) {
                made.found.incarnation.execution = anew;
            }
            made.found.state = NodeState::Running;
            Ok(made.found.incarnation.clone())
        })
    }

    fn next_execution(&self) -> ExecutionId {
        let number = self.executions.fetch_add(1, Ordering::Relaxed);
        format!("x{number}").parse().unwrap()
    }

    fn with<T>(
        &self,
        incarnation: &Incarnation,
        act: impl FnOnce(&mut Made) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let mut made = self.made.lock().unwrap();
        match made.get_mut(&incarnation.sandbox) {
            Some(made) if made.found.incarnation == *incarnation => act(made),
            _ => Err(NodeError::NotFound(incarnation.clone())),
        }
    }

    fn fault(&self, flag: &AtomicBool, what: &'static str, incarnation: &Incarnation) -> Result<(), NodeError> {
        if flag.load(Ordering::Relaxed) {
            let source = "injected".into();
            return Err(NodeError::Failed { what, incarnation: incarnation.clone(), source });
        }
        Ok(())
    }
}

#[async_trait]
impl NodeApi for FakeNode {
    async fn create(&self, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        self.creates.fetch_add(1, Ordering::Relaxed);
        let this = self.this.upgrade().unwrap();
        self.runtime.spawn(async move { this.create_to_the_end(spec).await }).await.unwrap()
    }

    async fn wait_for_template(&self, template: &str) -> Result<(), CreateError> {
        self.faults.waits.fetch_add(1, Ordering::Relaxed);
        while self.faults.builds.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.faults.builds_too_long.load(Ordering::Relaxed) {
            let progress = "step 3 of 9, Installing pandas".to_owned();
            return Err(CreateError::TemplateNotReady { template: template.to_owned(), progress });
        }
        Ok(())
    }

    async fn kill(&self, incarnation: &Incarnation) -> Result<(), NodeError> {
        let life = incarnation.clone();
        self.slowly(move |node| node.kill_now(&life)).await
    }

    async fn pause(&self, incarnation: &Incarnation, mode: PauseMode) -> Result<(), NodeError> {
        let life = incarnation.clone();
        self.slowly(move |node| node.pause_now(&life, mode)).await
    }

    async fn resume(&self, incarnation: &Incarnation) -> Result<Incarnation, NodeError> {
        let life = incarnation.clone();
        self.slowly(move |node| node.resume_now(&life)).await
    }

    async fn no_memory_snapshots(&self) -> Option<String> {
        self.faults.no_memory.lock().unwrap().clone()
    }

    async fn snapshot(
        &self,
        incarnation: &Incarnation,
        id: &SnapshotId,
        kind: SnapshotKind,
    ) -> Result<NodeSnapshot, NodeError> {
        let (life, id) = (incarnation.clone(), id.clone());
        self.slowly(move |node| node.snapshot_now(&life, &id, kind)).await
    }

    async fn save_paused(&self) -> Vec<NotSaved> {
        self.slowly(Self::save_paused_now).await
    }

    async fn snapshots(&self) -> Vec<NodeSnapshot> {
        self.kept_snapshots()
    }

    async fn remove_snapshot(&self, id: &SnapshotId) -> io::Result<()> {
        self.removals.lock().unwrap().push(id.clone());
        while self.faults.remove_snapshot_waits.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.faults.remove_snapshot_fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("injected"));
        }
        self.snapshots.lock().unwrap().remove(id);
        Ok(())
    }

    async fn rollback(&self, incarnation: &Incarnation, snapshot: &InitialSnapshot) -> Result<Incarnation, NodeError> {
        let (life, snapshot) = (incarnation.clone(), snapshot.clone());
        self.slowly(move |node| node.rollback_now(&life, &snapshot)).await
    }

    async fn set_network(&self, incarnation: &Incarnation, policy: NetworkPolicy) -> Result<(), NodeError> {
        self.with(incarnation, |made| {
            made.found.spec.network = policy;
            Ok(())
        })
    }

    async fn usage(&self, incarnation: &Incarnation) -> Result<Usage, NodeError> {
        let dials = self.dials.load(Ordering::Relaxed);
        self.with(incarnation, |_| {
            Ok(Usage { cpu_micros: 1000 + dials, memory: 5 << 20, cache: 1 << 20, disk: 7, disk_total: 100, pids: 3 })
        })
    }

    async fn dial(&self, incarnation: &Incarnation, target: Target) -> Result<Box<dyn Stream>, DialError> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        let (state, gone) = {
            let made = self.made.lock().unwrap();
            let made = made.get(&incarnation.sandbox).filter(|made| made.found.incarnation == *incarnation);
            let made = made.ok_or_else(|| DialError::NotFound(incarnation.clone()))?;
            (made.found.state, made.connections.clone())
        };
        if state != NodeState::Running {
            return Err(DialError::Paused(incarnation.clone()));
        }
        if target == Target::Interpreter && !self.has_interpreter.load(Ordering::Relaxed) {
            return Err(DialError::Refused { incarnation: incarnation.clone(), port: INTERPRETER_PORT });
        }
        if let Target::Port(port) = target
            && !self.open_ports.lock().unwrap().contains(&port)
        {
            return Err(DialError::Refused { incarnation: incarnation.clone(), port });
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        self.runtime.spawn(guest::serve(theirs, target, gone, Arc::clone(&self.printed)));
        Ok(Box::new(ours))
    }

    async fn list(&self) -> Vec<NodeSandbox> {
        self.made.lock().unwrap().values().map(|made| made.found.clone()).collect()
    }

    async fn next_event(&self) -> Option<NodeEvent> {
        self.events.lock().await.recv().await
    }

    async fn free_memory(&self) -> Bytes {
        Bytes::mib(1024)
    }

    async fn pool_status(&self) -> PoolStatus {
        let shelf = TemplatePoolStatus {
            template: "base".to_owned(),
            ready: 1,
            prepared: 2,
            wanted_ready: 3,
            wanted_prepared: 4,
        };
        PoolStatus { templates: vec![shelf], free_slots: Some(4000) }
    }

    async fn templates(&self) -> Vec<TemplateInfo> {
        let info = |name: &str| TemplateInfo {
            name: name.to_owned(),
            aliases: Vec::new(),
            summary: String::new(),
            made_at: (name == "base").then(|| std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
            state: TemplateState::Ready,
        };
        ["base", "code-interpreter-v1"].map(info).to_vec()
    }

    async fn build_template(
        &self,
        spec: BuildSpec,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<BuiltTemplate, BuildError> {
        self.builder.build(spec, events, cancel).await
    }

    async fn built_templates(&self) -> Vec<KeptTemplate> {
        let in_use: BTreeSet<String> = self.list().await.into_iter().map(|sandbox| sandbox.spec.template).collect();
        self.builder.kept(&in_use)
    }

    /// The archive is just what was asked for.
    async fn export_template(&self, spec: ExportSpec) -> Result<ExportedImage, ExportError> {
        if !self.builder.has(&spec.template) {
            return Err(ExportError::NotFound(spec.template));
        }
        if spec.name.contains(' ') {
            return Err(ExportError::Name(format!("{:?} cannot be the name of an image", spec.name)));
        }
        if self.faults.templates_are_on_host.load(Ordering::Relaxed) {
            return Err(ExportError::OnHost);
        }
        let text = format!("{} squash={}", spec.name, spec.squash);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        Ok(ExportedImage { file, size: text.len() as u64, digest: "sha256:1".to_owned() })
    }

    async fn remove_template(&self, id: &str) -> Result<(), RemoveTemplateError> {
        if self.list().await.iter().any(|sandbox| sandbox.spec.template == id) {
            return Err(RemoveTemplateError::InUse(id.to_owned()));
        }
        self.builder.remove(id)
    }
}
