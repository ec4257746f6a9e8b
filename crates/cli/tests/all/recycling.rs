//! What one sandbox leaves for the next: a network that was never used, and nothing else. And what nobody claims goes
//! while the server runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isopod_node::{Node, PoolSize, StateRoot};
use isopod_testkit::{Platform, StateDir, TestSandbox, spec};
use isopod_wire::node::{NodeApi, SandboxSpec, Target};
use isopod_wire::{Bytes, Limits, NetworkPolicy};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// The address that the sandbox has on its interface, found without sending anything.
async fn address(sandbox: &TestSandbox) -> String {
    sandbox
        .sh("awk '/32 host LOCAL/ {print address} {address = $2}' /proc/net/fib_trie | grep -v ^127 | sort -u")
        .await
        .ok()
}

async fn end(platform: &Platform, sandbox: &TestSandbox) {
    platform.node.kill(&sandbox.incarnation).await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_was_never_used_serves_the_next_sandbox() {
    let platform = Platform::start(BINARY).await;
    let first = platform.sandbox().await;
    let unused = address(&first).await;
    assert!(unused.trim().parse::<std::net::Ipv4Addr>().is_ok(), "{unused:?}");
    end(&platform, &first).await;
    let second = platform.sandbox().await;
    assert_eq!(address(&second).await, unused);
    let works = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8080)); \
        c = socket.create_connection((\"127.0.0.1\", 8080)); s.accept()[0].send(b\"x\"); print(c.recv(1))'";
    assert_eq!(second.sh(works).await.ok(), "b'x'\n");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_carried_a_packet_or_was_reached_into_is_given_to_nobody() {
    let platform = Platform::start(BINARY).await;
    let uses = [
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b\"x\", (\"127.0.0.1\", 9))'",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b\"x\", (\"192.0.2.1\", 9))'",
        "python3 -c 'import socket; socket.socket().connect_ex((\"127.0.0.1\", 9))'",
    ];
    for what in uses {
        let sandbox = platform.sandbox().await;
        let used = address(&sandbox).await;
        sandbox.sh(what).await.ok();
        end(&platform, &sandbox).await;
        let next = platform.sandbox().await;
        assert_ne!(address(&next).await, used, "{what}");
        // Not even looked into: what it had is as new, and goes to the sandbox of the next round.
        end(&platform, &next).await;
    }
    let dialled = platform.sandbox().await;
    let used = address(&dialled).await;
    assert!(platform.node.dial(&dialled.incarnation, Target::Port(9)).await.is_err());
    end(&platform, &dialled).await;
    assert_ne!(address(&platform.sandbox().await).await, used);
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_sandbox_has_its_own_policy_and_none_of_the_files() {
    let platform = Platform::start(BINARY).await;
    let closed = NetworkPolicy { deny_internet: true, ..NetworkPolicy::default() };
    let first = platform.sandbox_of(SandboxSpec { network: closed, ..spec() }).await;
    let unused = address(&first).await;
    first.sh("echo secret > ~/mine; echo secret > /tmp/mine; echo secret > /dev/shm/mine").await.ok();
    end(&platform, &first).await;
    let second = platform.sandbox().await;
    assert_eq!(address(&second).await, unused);
    assert_eq!(second.sh("ls -A /tmp /dev/shm; ls ~/mine 2>/dev/null; true").await.ok(), "/dev/shm:\n\n/tmp:\n");
    assert!(platform.node.list().await.iter().all(|sandbox| sandbox.spec.network == NetworkPolicy::default()));
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_file_systems_fit_the_memory_that_is_asked_for() {
    let pool = PoolSize { ready: 0, prepared: 1 };
    let platform = Platform::start_with(BINARY, pool).await;
    for mib in [256, 1024] {
        platform.node.wait_for_pool(pool).await;
        let limits = Limits { memory: Bytes::mib(mib), ..Limits::default() };
        let sandbox = platform.sandbox_of(SandboxSpec { limits, ..spec() }).await;
        for place in ["/tmp", "/dev/shm", "/run"] {
            let size = sandbox.sh(&format!("df -m --output=size {place} | tail -1")).await.ok();
            assert_eq!(size.trim(), (mib / 2).to_string(), "{place}");
        }
        let inodes = sandbox.sh("df --output=itotal /tmp | tail -1").await.ok();
        assert_eq!(inodes.trim(), (mib * 128).to_string());
    }
    platform.finish().await;
}

/// Everything that a process leaves which is killed at the worst moment.
struct Strays {
    cgroup: PathBuf,
    claim: PathBuf,
    area: PathBuf,
}

impl Strays {
    fn make(state: &Path) -> Self {
        let tag = std::fs::read_to_string(state.join("tag")).expect("a tag");
        let name = "straystraystraystray";
        let strays = Self {
            cgroup: Path::new("/sys/fs/cgroup/pids").join(format!("isopod-{}", tag.trim())).join(name),
            claim: Path::new("/run/isopod/slots/3999").to_owned(),
            area: state.join("disk/areas").join(name),
        };
        if strays.cgroup.parent().is_some_and(Path::is_dir) {
            std::fs::create_dir(&strays.cgroup).expect("a cgroup");
        }
        std::os::unix::fs::symlink(format!("{}/{name}", tag.trim()), &strays.claim).expect("a free slot");
        std::fs::create_dir(&strays.area).expect("a directory");
        strays
    }

    fn left(&self) -> Vec<&Path> {
        let all = [&self.cgroup, &self.claim, &self.area];
        all.into_iter().filter(|path| path.symlink_metadata().is_ok()).map(PathBuf::as_path).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_claims_goes_while_sandboxes_come_and_go() {
    let state = StateDir::new(BINARY);
    let root = StateRoot::open(state.path()).expect("a state directory");
    let mut config = state.node_config(PoolSize { ready: 1, prepared: 1 });
    config.sweep_every = Duration::from_millis(100);
    let node = Node::open(root, config).await.expect("a node");
    let kept = node.create(spec()).await.expect("a sandbox");
    let strays = Strays::make(state.path());
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut rounds = 0;
    while (!strays.left().is_empty() || rounds < 20) && Instant::now() < deadline {
        let passing = node.create(spec()).await.expect("a sandbox");
        node.pause(&passing, isopod_wire::node::PauseMode::Filesystem).await.expect("it stops");
        let passing = node.resume(&passing).await.expect("it starts again");
        node.kill(&passing).await.expect("it ends");
        rounds += 1;
    }
    assert_eq!(strays.left(), Vec::<&Path>::new());
    let listed: Vec<_> = node.list().await.into_iter().map(|sandbox| sandbox.incarnation).collect();
    assert_eq!(listed, std::slice::from_ref(&kept));
    assert!(node.dial(&kept, Target::Guest).await.is_ok());
    node.kill(&kept).await.expect("it ends");
    node.close().await;
    state.assert_nothing_left();
}
