//! A node for a test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isopod_disk::DiskOptions;
use isopod_guest_client::guest::Guest;
use isopod_node::base::{BaseOptions, HostEnvironment};
use isopod_node::{HomeKind, Node, NodeConfig, PoolSize, RegistrySettings, SpawnerProgram, StateRoot};
use isopod_wire::node::{Incarnation, NodeApi, SandboxSpec};
use isopod_wire::{Bytes, KernelFeatures, Limits, NetworkPolicy, SandboxId};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::residue::{Residue, assert_nothing_left};
use crate::shared_base::share_base;
use crate::{Isopod, TestSandbox};

/// If this variable is set, a failed test keeps its state directory with logs and records, and its sandboxes.
const KEEP_FAILED: &str = "ISOPOD_KEEP_FAILED";
/// How long to wait for the end of a failed test.
const UNINSTALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A state directory that is removed, with everything that belongs to it, when the test ends.
#[derive(Debug)]
pub struct StateDir {
    directory: tempfile::TempDir,
    binary: PathBuf,
}

/// A node with real isolation.
#[derive(Debug)]
pub struct Platform {
    /// The node itself, for everything that has no shortcut here.
    pub node: Node,
    state: StateDir,
}

/// Fails unless the test runs as root, which real isolation needs.
///
/// # Panics
/// If the test does not run as root. Silently testing nothing would be worse.
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test makes real sandboxes and must run as root");
}

/// Returns the specification of a typical sandbox.
///
/// # Panics
/// If the kernel provides no random numbers.
pub fn spec() -> SandboxSpec {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("the kernel provides random numbers");
    SandboxSpec {
        sandbox: SandboxId::from_random(bytes),
        template: "base".to_owned(),
        limits: Limits::default(),
        network: NetworkPolicy::default(),
        env: BTreeMap::new(),
        access_token: None,
        labels: BTreeMap::new(),
        mounts: Vec::new(),
        features: KernelFeatures::default(),
        snapshot: None,
    }
}

impl StateDir {
    /// Creates one with the base of this host, which all tests share. `binary` is the path of the `isopod` program.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn new(binary: impl AsRef<Path>) -> Self {
        let state = Self::empty(binary);
        share_base(&cache_directory(), state.path()).expect("a base");
        state
    }

    /// Creates one as on a machine that has never run the program.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn empty(binary: impl AsRef<Path>) -> Self {
        require_root();
        let directory = tempfile::Builder::new().prefix("isopod-test-").tempdir_in("/var/tmp").expect("a directory");
        Self { directory, binary: binary.as_ref().to_owned() }
    }

    /// Uses the built templates that all tests share, because building one takes a minute and a download.
    ///
    /// # Panics
    /// If they cannot be shared.
    #[must_use]
    pub fn with_shared_templates(self) -> Self {
        let shared = cache_directory().join("templates");
        std::fs::create_dir_all(&shared).expect("a directory");
        std::os::unix::fs::symlink(shared, self.path().join("templates")).expect("a link");
        self
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The program with this state directory.
    pub fn isopod(&self) -> Isopod {
        Isopod::new(&self.binary, self.path())
    }

    /// The configuration of a node with this directory.
    pub fn node_config(&self, pool: PoolSize) -> NodeConfig {
        NodeConfig {
            home: HomeKind::Server,
            spawner: SpawnerProgram { program: self.binary.clone(), arguments: vec!["__spawner".into()] },
            pool,
            prepare: Vec::new(),
            default_limits: Limits::default(),
            base: BaseOptions::default(),
            host_environment: HostEnvironment::ALL,
            variables: std::env::vars().collect(),
            disk: DiskOptions { image_size: Some(Bytes::mib(8 << 10)), ..DiskOptions::default() },
            sweep_every: isopod_node::DEFAULT_SWEEP,
            // Tests contact no registry. Those of registries bring their own.
            registries: RegistrySettings { offline: true, ..RegistrySettings::default() },
            pool_network: None,
            private_networks: Vec::new(),
            workspace: None,
            criu: criu(),
            save_paused_after: None,
            pack_memory_after: None,
            keep_memory_free: Bytes(0),
            start_images: true,
        }
    }

    /// Opens a node with this directory.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub async fn open_node(&self, pool: PoolSize) -> Node {
        let state = StateRoot::open(self.path()).expect("a state directory");
        Node::open(state, self.node_config(pool)).await.expect("a node")
    }

    #[expect(clippy::print_stderr, reason = "it informs the developer who set the variable")]
    fn keep(&mut self) {
        self.directory.disable_cleanup(true);
        let (binary, state) = (self.binary.display(), self.path().display());
        eprintln!("kept: {state}\nremove it with: {binary} --state-dir {state} uninstall --yes");
    }

    /// Retries, because a node that a panic left in another thread of the test holds the state directory for a moment
    /// longer.
    fn uninstall(&self) -> bool {
        let deadline = Instant::now() + UNINSTALL_TIMEOUT;
        loop {
            let removed = self.isopod().command(&["uninstall", "--yes"]).output();
            let is_gone = removed.is_ok_and(|output| output.status.success()) && Residue::of(self.path()).is_empty();
            if is_gone || Instant::now() > deadline {
                return is_gone;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Checks that nothing of it is left on the host. Its sandboxes must have ended.
    pub fn assert_nothing_left(&self) {
        assert_nothing_left(self.path());
    }
}

impl Drop for StateDir {
    /// A test that failed halfway leaves sandboxes. They are removed, and the failure stays the only message.
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os(KEEP_FAILED).is_some() {
            self.keep();
            return;
        }
        if Residue::of(self.path()).is_empty() {
            return;
        }
        let removed = self.uninstall();
        if !removed && !std::thread::panicking() {
            panic!("could not remove the remains of a test in {}", self.path().display());
        }
    }
}

impl Platform {
    /// Starts a node without a pool, so that everything a test sees was created for it.
    pub async fn start(binary: impl AsRef<Path>) -> Self {
        Self::start_with(binary, PoolSize::NONE).await
    }

    /// Starts a node with a pool.
    pub async fn start_with(binary: impl AsRef<Path>, pool: PoolSize) -> Self {
        Self::open(StateDir::new(binary), pool).await
    }

    /// Starts a node on a state directory that a test has prepared.
    pub async fn open(state: StateDir, pool: PoolSize) -> Self {
        init_logging();
        Self { node: state.open_node(pool).await, state }
    }

    /// The state directory.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// Creates a typical sandbox.
    pub async fn sandbox(&self) -> TestSandbox {
        self.sandbox_of(spec()).await
    }

    /// Creates a sandbox with this specification.
    ///
    /// # Panics
    /// If it cannot be created.
    pub async fn sandbox_of(&self, spec: SandboxSpec) -> TestSandbox {
        let incarnation = self.node.create(spec).await.expect("a sandbox");
        self.find(&incarnation)
    }

    /// Returns a handle to a sandbox.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn find(&self, incarnation: &Incarnation) -> TestSandbox {
        let socket = self.node.guest_socket(incarnation).expect("a sandbox that is here");
        let init_pid = self.node.init_pid(incarnation).expect("a sandbox with processes");
        TestSandbox { incarnation: incarnation.clone(), guest: Guest::over_unix(socket).with_user("user"), init_pid }
    }

    /// Ends all sandboxes and the node, and checks that nothing is left.
    ///
    /// # Panics
    /// If something is left.
    pub async fn finish(self) {
        let Self { node, state } = self;
        for sandbox in node.list().await {
            node.kill(&sandbox.incarnation).await.expect("a sandbox ends");
        }
        node.close().await;
        state.assert_nothing_left();
    }
}

/// What tests share.
fn cache_directory() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    cache.expect("there is a home").join("isopod")
}

fn init_logging() {
    // Another test of the same process may have installed one first.
    let asked = std::env::var("ISOPOD_LOG").ok().and_then(|levels| levels.parse::<Targets>().ok());
    let targets = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer().with_test_writer().with_filter(targets);
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

/// The program that `cargo xtask setup` makes for the tests.
pub fn criu() -> Result<PathBuf, String> {
    let place = std::env::var_os("ISOPOD_CRIU").map(PathBuf::from);
    place.ok_or_else(|| "ISOPOD_CRIU is not set; cargo xtask test sets it".to_owned())
}
