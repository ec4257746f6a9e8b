//! Saves and restores of memory that something ends halfway: CRIU or the guest is killed, or the disk has no space.
//!
//! These need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::{common, memory};

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Server, has_criu};
use isopod_client::guest::StartProcess;
use isopod_client::sandbox::{ApiError, ListSnapshots, NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::StateDir;
use memory::{executions, record_of, until, user_of};

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

/// Whether the program goes on, or has lost one of its two processes. CRIU runs single instructions in them that end at a
/// breakpoint. If it is killed before that, nobody takes the breakpoint, and the process ends.
async fn goes_on_whole(sandbox: &Sandbox) -> bool {
    let before = until("it counts", async || count(sandbox).await).await;
    until("it counts on, or a process has ended", async || {
        if count(sandbox).await.is_some_and(|now| now > before) {
            return Some(true);
        }
        let states = user_of(sandbox).run("cat /proc/[0-9]*/stat").await.ok()?;
        let living =
            states.text().lines().filter(|line| line.contains(" (python3) ") && !line.contains(") Z ")).count();
        (living < 2).then_some(false)
    })
    .await
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

/// The first process of the sandbox that a process is in.
fn guest_beside(criu: u32) -> Option<u32> {
    let mounts = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = mounts(criu)?;
    let is_first = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        pids.is_some_and(|pids| pids.split_whitespace().next_back() == Some("1"))
    };
    let mut pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid| mounts(*pid).as_ref() == Some(&own) && is_first(*pid))
}

#[derive(Clone, Copy)]
enum Victim {
    Criu,
    Process(u32),
    /// The first process of the sandbox in which CRIU restores.
    NewGuest,
    /// A process of the host, which is not killed but put into the cgroups of a guest.
    Stranger {
        stranger: u32,
        guest: u32,
    },
}

/// Puts a process into the cgroups of another one. Returns whether there were any.
fn move_to_cgroups_of(pid: u32, other: u32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{other}/cgroup")).unwrap_or_default();
    let own = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mount = match controllers {
            "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => "/sys/fs/cgroup".to_owned(),
            "" => "/sys/fs/cgroup/unified".to_owned(),
            named => format!("/sys/fs/cgroup/{}", named.trim_start_matches("name=")),
        };
        path.contains("isopod-").then(|| fs::write(format!("{mount}{path}/cgroup.procs"), pid.to_string()).is_ok())
    };
    groups.lines().filter_map(own).filter(|is_moved| *is_moved).count() > 0
}

/// Kills CRIU, or another process, this long after CRIU began.
struct Killer {
    ended: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<bool>,
}

impl Killer {
    fn start(state: &StateDir, task: &'static str, moment: Duration, victim: Victim) -> Self {
        let (ended, state) = (Arc::new(AtomicBool::new(false)), state.path().to_owned());
        let over = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Some(criu) = first_criu(&state, task) else { continue };
                let found = match victim {
                    Victim::Criu => Some(criu),
                    Victim::Process(pid) | Victim::Stranger { stranger: pid, .. } => Some(pid),
                    Victim::NewGuest => guest_beside(criu),
                };
                let Some(pid) = found else { continue };
                std::thread::sleep(moment);
                if let Victim::Stranger { stranger, guest } = victim {
                    return move_to_cgroups_of(stranger, guest);
                }
                return Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success();
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
    let (mut refused, mut cut) = (0, 0);
    for moment in MOMENTS {
        let sandbox = start_counting(&server).await;
        let killer = Killer::start(&state, "dump", moment, Victim::Criu);
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
        if !goes_on_whole(&sandbox).await {
            assert!(was_killed, "{moment:?}");
            cut += 1;
            user_of(&sandbox).run("pkill python3; rm n").await.unwrap();
            user_of(&sandbox).start(StartProcess::shell(COUNTER)).await.unwrap();
            goes_on(&sandbox).await;
        }
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
    assert!(cut < MOMENTS.len() - 1, "{cut} programs lost a process");
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
            record_of(&state, sandbox.id().as_str()).filter(|record| record["state"] == "saved")
        })
        .await;
        let killer = Killer::start(&state, "restore", moment, Victim::Criu);
        let resumed = server.client().connect(sandbox.id(), None).await;
        let was_killed = killer.finish();
        if let Err(error) = resumed {
            assert!(was_killed, "{moment:?}: {error}");
            assert_eq!(record_of(&state, sandbox.id().as_str()).unwrap()["state"], "saved", "{moment:?}: {error}");
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
        let guest = guest_of(&state, &sandbox);
        let killer = Killer::start(&state, "dump", moment, Victim::Process(guest));
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

/// A process that CRIU's part in it would have given rights is among them when they are looked at after the dump.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_has_a_process_with_other_rights_after_a_save_is_ended() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let mut found = 0;
    for moment in MOMENTS {
        let sandbox = start_counting(&server).await;
        let guest = guest_of(&state, &sandbox);
        // With all the rights of the host's root, and no filter.
        let mut stranger = Command::new("sleep").arg("3600").spawn().unwrap();
        let victim = Victim::Stranger { stranger: stranger.id(), guest };
        let mover = Killer::start(&state, "dump", moment, victim);
        let taken = sandbox.snapshot(&NewSnapshot::default()).await;
        assert!(mover.finish(), "{moment:?}");
        match taken {
            Err(error) => {
                assert!(error.to_string().contains("more than its sandbox allows"), "{moment:?}: {error}");
                until("it has ended", async || server.client().connect(sandbox.id(), None).await.err()).await;
                found += 1;
            }
            // It came after they were looked at.
            Ok(snapshot) => {
                assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());
                assert!(sandbox.kill().await.unwrap());
            }
        }
        assert_eq!(stranger.wait().unwrap().signal(), Some(9), "{moment:?}: what is in its cgroups ends with it");
        assert!(server.client().list_snapshots(&ListSnapshots::default()).await.unwrap().is_empty());
    }
    assert!(found > 0, "the stranger never came in time");
    server.stop();
    state.assert_nothing_left();
}

/// The first process of a sandbox.
fn guest_of(state: &StateDir, sandbox: &Sandbox) -> u32 {
    record_of(state, sandbox.id().as_str()).unwrap()["init"]["pid"].as_u64().unwrap() as u32
}

/// How many executions have an owner: sandboxes that run or are paused, and snapshots.
fn owned(state: &StateDir) -> usize {
    executions(state).iter().filter(|execution| !memory::record(execution)["spec"].is_null()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_is_killed_while_its_sandbox_is_resumed_leaves_what_is_saved() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "1");
    let client = server.client();
    let mut failed = 0;
    for moment in &MOMENTS[..3] {
        let sandbox = start_counting(&server).await;
        sandbox.pause(true).await.unwrap();
        let is_saved = || record_of(&state, sandbox.id().as_str()).filter(|record| record["state"] == "saved");
        until("its memory is saved", async || is_saved()).await;
        let killer = Killer::start(&state, "restore", *moment, Victim::NewGuest);
        let resumed = client.connect(sandbox.id(), None).await;
        let was_killed = killer.finish();
        match resumed {
            Err(error) => {
                assert!(was_killed, "{moment:?}: {error}");
                assert!(is_saved().is_some(), "{moment:?}: {error}");
                client.connect(sandbox.id(), None).await.unwrap();
                goes_on(&sandbox).await;
                assert!(sandbox.kill().await.unwrap());
                failed += 1;
            }
            // It was resumed before, and ended with its guest.
            Ok(_) if was_killed => {
                until("it has ended", async || client.connect(sandbox.id(), None).await.err()).await;
            }
            Ok(_) => assert!(sandbox.kill().await.unwrap()),
        }
        until("nothing of it is left", async || (owned(&state) == 0).then_some(())).await;
    }
    assert!(failed > 0, "the guest was never killed in time");
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_outlives_criu_that_is_killed_while_it_restores_one_of_the_copies() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let source = start_counting(&server).await;
    let mut failed = 0;
    for moment in MOMENTS {
        let killer = Killer::start(&state, "restore", moment, Victim::Criu);
        let copies = source.fork(3, Some(Duration::from_secs(120))).await.unwrap();
        let was_killed = killer.finish();
        assert_eq!(copies.len(), 3);
        let (made, errors): (Vec<_>, Vec<_>) = copies.into_iter().partition(Result::is_ok);
        assert!(errors.len() <= usize::from(was_killed), "{moment:?}: {errors:?}");
        for error in errors {
            assert_not_restored(&error.unwrap_err());
            failed += 1;
        }
        for copy in made {
            let copy = copy.unwrap();
            goes_on(&copy).await;
            assert!(copy.kill().await.unwrap());
        }
        goes_on(&source).await;
        until("only the source is left", async || (owned(&state) == 1).then_some(())).await;
    }
    assert!(failed > 0, "CRIU was never killed in time");
    assert!(source.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// It says so, and not to try again.
#[track_caller]
fn assert_not_restored(error: &ApiError) {
    let is_refused =
        matches!(error, ApiError::Conflict { message, retry_after: None, .. } if message.contains("restore"));
    assert!(is_refused, "{error:?}");
}

/// A guest that dies before CRIU has ended costs the restore. One that dies later costs what the server does next.
#[track_caller]
fn assert_guest_was_lost(error: &ApiError) {
    if !matches!(error, ApiError::Server { code: 500, .. }) {
        assert_not_restored(error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_outlives_criu_that_is_killed_while_a_sandbox_is_created_from_it() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let client = server.client();
    let source = start_counting(&server).await;
    let snapshot = source.snapshot(&NewSnapshot::default()).await.unwrap();
    assert!(source.kill().await.unwrap());
    let mut failed = 0;
    for moment in MOMENTS {
        let killer = Killer::start(&state, "restore", moment, Victim::Criu);
        let created = client.create(NewSandbox::new(snapshot.id.clone())).await;
        let was_killed = killer.finish();
        let copy = match created {
            Ok(copy) => copy,
            Err(error) => {
                assert!(was_killed, "{moment:?}: {error}");
                assert_not_restored(&error);
                failed += 1;
                until("only the snapshot is left", async || (owned(&state) == 1).then_some(())).await;
                client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap()
            }
        };
        goes_on(&copy).await;
        assert!(copy.kill().await.unwrap());
    }
    assert!(failed > 0, "CRIU was never killed in time");
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_goes_on_as_it_was_if_criu_is_killed_while_it_is_rolled_back() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let sandbox = start_counting(&server).await;
    let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
    let has_later_file = async || user_of(&sandbox).run("test -e later").await.unwrap().ended.exit_code == 0;
    let mut failed = 0;
    for moment in MOMENTS {
        user_of(&sandbox).write_file("later", "than the snapshot").await.unwrap();
        let killer = Killer::start(&state, "restore", moment, Victim::Criu);
        let rolled_back = sandbox.rollback(&snapshot.id).await;
        let was_killed = killer.finish();
        assert_eq!(has_later_file().await, rolled_back.is_err(), "{moment:?}: {rolled_back:?}");
        if let Err(error) = rolled_back {
            assert!(was_killed, "{moment:?}: {error}");
            assert_not_restored(&error);
            failed += 1;
            goes_on(&sandbox).await;
            until("only the sandbox and its snapshot are left", async || (owned(&state) == 2).then_some(())).await;
            sandbox.rollback(&snapshot.id).await.unwrap();
            assert!(!has_later_file().await);
        }
        goes_on(&sandbox).await;
    }
    assert!(failed > 0, "CRIU was never killed in time");
    assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());
    assert!(sandbox.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_is_killed_while_its_sandbox_is_created_from_a_snapshot_costs_that_sandbox_only() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let client = server.client();
    let source = start_counting(&server).await;
    let snapshot = source.snapshot(&NewSnapshot::default()).await.unwrap();
    let mut failed = 0;
    for moment in MOMENTS {
        let killer = Killer::start(&state, "restore", moment, Victim::NewGuest);
        let created = client.create(NewSandbox::new(snapshot.id.clone())).await;
        let was_killed = killer.finish();
        match created {
            Err(error) => {
                assert!(was_killed, "{moment:?}: {error}");
                // If it died after everything was restored, the create itself has failed.
                if !matches!(&error, ApiError::Server { error_code: Some(code), .. } if code == "sandbox_create_failed")
                {
                    assert_not_restored(&error);
                }
                failed += 1;
            }
            // It was there before, and ended with its guest.
            Ok(copy) if was_killed => {
                until("it has ended", async || client.connect(copy.id(), None).await.err()).await;
            }
            Ok(copy) => assert!(copy.kill().await.unwrap()),
        }
        goes_on(&source).await;
        until("only the source and the snapshot are left", async || (owned(&state) == 2).then_some(())).await;
    }
    assert!(failed > 0, "the guest was never killed in time");
    let copy = client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
    goes_on(&copy).await;
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    for sandbox in [source, copy] {
        assert!(sandbox.kill().await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_of_a_copy_that_is_killed_during_a_fork_costs_that_copy_only() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let client = server.client();
    let source = start_counting(&server).await;
    let mut failed = 0;
    for moment in MOMENTS {
        let killer = Killer::start(&state, "restore", moment, Victim::NewGuest);
        let copies = source.fork(3, Some(Duration::from_secs(120))).await.unwrap();
        let was_killed = killer.finish();
        assert_eq!(copies.len(), 3);
        let (made, errors): (Vec<_>, Vec<_>) = copies.into_iter().partition(Result::is_ok);
        assert!(errors.len() <= usize::from(was_killed), "{moment:?}: {errors:?}");
        let mut lost = usize::from(was_killed) - errors.len();
        for error in errors {
            assert_guest_was_lost(&error.unwrap_err());
            failed += 1;
        }
        let made: Vec<Sandbox> = made.into_iter().map(Result::unwrap).collect();
        let ended = async || {
            for copy in &made {
                if client.connect(copy.id(), None).await.is_err() {
                    return Some(());
                }
            }
            None
        };
        if lost > 0 {
            until("a copy that was there before has ended with its guest", ended).await;
        }
        for copy in made {
            if lost > 0 && client.connect(copy.id(), None).await.is_err() {
                lost -= 1;
                continue;
            }
            goes_on(&copy).await;
            assert!(copy.kill().await.unwrap());
        }
        goes_on(&source).await;
        until("only the source is left", async || (owned(&state) == 1).then_some(())).await;
    }
    assert!(failed > 0, "the guest was never killed in time");
    assert!(source.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_goes_on_as_it_was_if_its_new_guest_is_killed_while_it_is_rolled_back() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, "0");
    let client = server.client();
    let mut failed = 0;
    for moment in &MOMENTS[..3] {
        let sandbox = start_counting(&server).await;
        let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
        user_of(&sandbox).write_file("later", "than the snapshot").await.unwrap();
        let killer = Killer::start(&state, "restore", *moment, Victim::NewGuest);
        let rolled_back = sandbox.rollback(&snapshot.id).await;
        let was_killed = killer.finish();
        match rolled_back {
            Err(error) => {
                assert!(was_killed, "{moment:?}: {error}");
                assert_guest_was_lost(&error);
                failed += 1;
                assert_eq!(user_of(&sandbox).run("test -e later").await.unwrap().ended.exit_code, 0, "{moment:?}");
                goes_on(&sandbox).await;
                until("only the sandbox and its snapshot are left", async || (owned(&state) == 2).then_some(())).await;
                sandbox.rollback(&snapshot.id).await.unwrap();
                goes_on(&sandbox).await;
                assert!(sandbox.kill().await.unwrap());
            }
            // It was put back before, and ended with its guest.
            Ok(_) if was_killed => {
                until("it has ended", async || client.connect(sandbox.id(), None).await.err()).await;
            }
            Ok(_) => assert!(sandbox.kill().await.unwrap()),
        }
        assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
        until("nothing of it is left", async || (owned(&state) == 0).then_some(())).await;
    }
    assert!(failed > 0, "the guest was never killed in time");
    server.stop();
    state.assert_nothing_left();
}

const MEMORY: u64 = 256 << 20;

/// Has this many bytes, and counts.
fn has_and_counts(bytes: u64) -> String {
    format!(
        "exec python3 -c \"
import os, time
kept, n = os.urandom({bytes}), 0
while True:
    n += 1
    open('n.new', 'w').write(str(n)); os.rename('n.new', 'n')
    time.sleep(0.01)\""
    )
}

/// Whatever does not fit is refused with the reason: nothing that was saved is lost, and what runs goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_with_almost_no_memory_left_is_saved_and_restored_or_refused_with_the_reason() {
    if !has_criu() {
        return;
    }
    let (state, settings) = (StateDir::new(BINARY), tempfile::NamedTempFile::new().unwrap());
    fs::write(settings.path(), "[sandbox]\nmemory = \"256M\"\n").unwrap();
    let server = memory::serve(&state, &["--save-paused-after", "1", "--config", settings.path().to_str().unwrap()]);
    let client = server.client();
    let source = memory::create(&client, "base").await;
    // Python itself takes some as well.
    let bytes = MEMORY / 100 * 95 - used_memory(&state, &source) - (10 << 20);
    user_of(&source).start(StartProcess::shell(has_and_counts(bytes))).await.unwrap();
    goes_on(&source).await;
    let used = used_memory(&state, &source);
    assert!(used > MEMORY / 100 * 92, "{} MiB", used >> 20);

    let copies = match source.snapshot(&NewSnapshot::default()).await {
        Ok(snapshot) => {
            let created = client.create(NewSandbox::new(snapshot.id.clone())).await;
            assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
            vec![created]
        }
        Err(error) => vec![Err(error)],
    };
    goes_on(&source).await;
    let forked = source.fork(2, Some(Duration::from_secs(120))).await.unwrap_or_else(|error| vec![Err(error)]);
    goes_on(&source).await;
    for copy in copies.into_iter().chain(forked) {
        match copy {
            Ok(copy) => {
                goes_on(&copy).await;
                assert!(copy.kill().await.unwrap());
            }
            Err(error) => assert!(matches!(error, ApiError::Conflict { .. }), "{error:?}"),
        }
    }

    source.pause(true).await.unwrap();
    let state_of = || record_of(&state, source.id().as_str()).unwrap()["state"].as_str().unwrap().to_owned();
    until("its memory is saved", async || (state_of() == "saved").then_some(())).await;
    let resumed = client.connect(source.id(), None).await;
    if let Err(error) = &resumed {
        assert!(matches!(error, ApiError::Conflict { .. }), "{error:?}");
        assert_eq!(state_of(), "saved");
    } else {
        goes_on(&source).await;
    }
    assert!(source.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// What its cgroup counts.
fn used_memory(state: &StateDir, sandbox: &Sandbox) -> u64 {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", guest_of(state, sandbox))).unwrap();
    let file = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "memory" => Some(format!("/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")),
            "" => Some(format!("/sys/fs/cgroup{path}/memory.current")),
            _ => None,
        }
    };
    let mut used = groups.lines().filter_map(file).filter_map(|file| fs::read_to_string(file).ok());
    used.next().unwrap().trim().parse().unwrap()
}
