//! Saves and restores of memory that something ends halfway: CRIU or the guest is killed, or the disk has no space.
//!
//! These need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::{common, memory};

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Server, has_criu};
use isopod_client::guest::StartProcess;
use isopod_client::sandbox::{ListSnapshots, NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::StateDir;
use memory::{executions, until, user_of};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");
/// When CRIU is killed, after it began. A dump of this sandbox takes about 40 ms, a restore about 20.
const MOMENTS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(12),
    Duration::from_millis(20),
    Duration::from_millis(35),
];

fn serve(state: &StateDir, save_paused_after: &str) -> Server {
    memory::serve(state, &["--save-paused-after", save_paused_after])
}

/// Two processes and a few threads that count.
const COUNTER: &str = "exec python3 -c \"
import os, threading, time
for _ in range(4): threading.Thread(target=time.sleep, args=(3000,), daemon=True).start()
end, other = __import__('socket').socketpair()
if os.fork() == 0:
    n = 0
    while end.recv(1):
        n += 1
        end.sendall(str(n).encode() + b' ')
    os._exit(0)
while True:
    other.sendall(b'x')
    open('n.new', 'w').write(other.recv(100).decode()); os.rename('n.new', 'n')
    time.sleep(0.01)\"";

async fn start_counting(server: &Server) -> Sandbox {
    let sandbox = memory::create(&server.client(), "base").await;
    user_of(&sandbox).start(StartProcess::shell(COUNTER)).await.unwrap();
    goes_on(&sandbox).await;
    sandbox
}

async fn count(sandbox: &Sandbox) -> Option<u64> {
    let read = user_of(sandbox).run("cat n").await.ok()?;
    String::from_utf8(read.stdout.to_vec()).ok()?.trim().parse().ok()
}

async fn goes_on(sandbox: &Sandbox) {
    let before = until("it counts", async || count(sandbox).await).await;
    until("it counts on", async || count(sandbox).await.filter(|now| *now > before)).await;
}

/// The first process of the CRIU that the spawner of this state directory has started for a task.
fn first_criu(state: &Path, task: &str) -> Option<u32> {
    let path = state.to_str().unwrap();
    let words = |pid: u32| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
    };
    let parent = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.and_then(|parent| parent.trim().parse::<u32>().ok()).filter(|parent| *parent > 1)
    };
    let is_ours = |pid: u32| std::iter::successors(Some(pid), |pid| parent(*pid)).any(|pid| words(pid).contains(path));
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_criu = |pid: u32| words(pid).contains(&format!("{task} --")) && words(pid).contains("--file-locks");
    pids.filter(|pid| is_criu(*pid) && is_ours(*pid)).min()
}

/// Kills CRIU, or another process, this long after CRIU began.
struct Killer {
    ended: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<bool>,
}

impl Killer {
    fn start(state: &StateDir, task: &'static str, moment: Duration, victim: Option<u32>) -> Self {
        let (ended, state) = (Arc::new(AtomicBool::new(false)), state.path().to_owned());
        let over = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if let Some(pid) = first_criu(&state, task) {
                    std::thread::sleep(moment);
                    let victim = victim.unwrap_or(pid).to_string();
                    return Command::new("kill").args(["-KILL", &victim]).status().unwrap().success();
                }
            }
            false
        });
        Self { ended, thread }
    }

    /// Whether there was one to kill.
    fn finish(self) -> bool {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_outlives_criu_that_is_killed_while_it_saves() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let mut refused = 0;
    for moment in MOMENTS {
        let sandbox = start_counting(&server).await;
        let killer = Killer::start(&state, "dump", moment, None);
        let taken = sandbox.snapshot(&NewSnapshot::default()).await;
        let was_killed = killer.finish();
        match taken {
            Ok(snapshot) => assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap()),
            Err(error) => {
                assert!(was_killed && error.to_string().contains("cannot be saved"), "{moment:?}: {error}");
                refused += 1;
            }
        }
        assert!(server.client().list_snapshots(&ListSnapshots::default()).await.unwrap().is_empty());
        goes_on(&sandbox).await;
        // Nothing keeps it from the next one.
        let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
        let copy = server.client().create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
        goes_on(&copy).await;
        assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());
        for sandbox in [sandbox, copy] {
            assert!(sandbox.kill().await.unwrap());
        }
    }
    assert!(refused > 0, "CRIU was never killed in time");
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_saved_outlives_criu_that_is_killed_while_it_restores() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "1");
    let sandbox = start_counting(&server).await;
    let mut failed = 0;
    for moment in MOMENTS {
        sandbox.pause(true).await.unwrap();
        until("its memory is saved", async || {
            record(&state, sandbox.id().as_str()).filter(|record| record["state"] == "saved")
        })
        .await;
        let killer = Killer::start(&state, "restore", moment, None);
        let resumed = server.client().connect(sandbox.id(), None).await;
        let was_killed = killer.finish();
        if let Err(error) = resumed {
            assert!(was_killed, "{moment:?}: {error}");
            assert_eq!(record(&state, sandbox.id().as_str()).unwrap()["state"], "saved", "{moment:?}: {error}");
            server.client().connect(sandbox.id(), None).await.unwrap();
            failed += 1;
        }
        goes_on(&sandbox).await;
    }
    assert!(failed > 0, "CRIU was never killed in time");
    assert!(sandbox.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_is_killed_while_it_is_saved_ends_its_sandbox_and_leaves_no_snapshot() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let mut kept = 0;
    for moment in MOMENTS {
        let sandbox = start_counting(&server).await;
        let guest = record(&state, sandbox.id().as_str()).unwrap()["init"]["pid"].as_u64().unwrap() as u32;
        let killer = Killer::start(&state, "dump", moment, Some(guest));
        let taken = sandbox.snapshot(&NewSnapshot::default()).await;
        assert!(killer.finish());
        until("it has ended", async || server.client().connect(sandbox.id(), None).await.err()).await;
        let listed = server.client().list_snapshots(&ListSnapshots::default()).await.unwrap();
        assert_eq!(listed.len(), usize::from(taken.is_ok()), "{moment:?}");
        if let Ok(snapshot) = taken {
            kept += 1;
            let copy = server.client().create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
            goes_on(&copy).await;
            assert!(copy.kill().await.unwrap());
            assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());
        }
    }
    assert!(kept < MOMENTS.len(), "the guest was never killed in time");
    server.stop();
    state.assert_nothing_left();
}

/// The record of a sandbox.
fn record(state: &StateDir, sandbox: &str) -> Option<Value> {
    let records = executions(state).into_iter().map(|execution| memory::record(&execution));
    let mut own = records.filter(|record| record["spec"]["sandbox"] == sandbox && record["snapshot"].is_null());
    own.next()
}
