//! Case 22: a sandbox that is saved by a program of the host, which traces its processes and is in its mount namespace.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use isopod_client::guest::{Event, Process, StartProcess};
use isopod_testkit::{TestSandbox, spec};
use isopod_wire::SnapshotId;
use isopod_wire::node::{CreateError, InitialSnapshot, NodeApi, NodeError, SandboxSpec, SnapshotKind};

use crate::arena::Arena;
use crate::common::has_criu;
use crate::probe::PRELUDE;
use crate::table::Who;

const PROBE: &str = include_str!("probes/checkpoint.py");
const PLACE: &str = "/opt/checkpoint.py";
const CACHE: &str = "/run/criu.kdat";
/// What a program of CRIU's or its configuration would leave.
const MARKERS: &str = "/tmp/criu-was-here*";

/// What saves the processes gets this far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// They never all stand still, or one of them is refused.
    Refused,
    /// They are saved. CRIU cannot restore them, and only its deadline of two minutes ends the attempt.
    Saved,
    Restored,
}

/// Functions of the probe, and what they do.
const ATTACKS: [(&str, &str, Until); 13] = [
    ("continues_itself", "have a timer continue it whenever it is stopped", Until::Restored),
    ("traces_siblings", "trace siblings while they are saved", Until::Refused),
    ("writes_into_siblings", "write into what CRIU puts into the memory of a sibling", Until::Restored),
    ("forks_without_end", "fork and end all the time", Until::Restored),
    ("vforks", "vfork all the time", Until::Restored),
    ("waits_in_vfork", "wait for the end of a vfork for good", Until::Refused),
    ("swaps_its_program", "swap the program that it runs", Until::Restored),
    ("replaces_its_vdso", "map other memory over its vDSO", Until::Refused),
    ("dies_of_any_call", "have a filter that ends it at any other call than read", Until::Saved),
    ("blocks_all_signals", "block all signals", Until::Restored),
    ("leads_a_session_without_a_parent", "lead a session without a parent", Until::Restored),
    ("renames_what_it_has_open", "rename and unlink what it has open", Until::Restored),
    ("has_room_for_nothing", "have no room for descriptors, memory and processes", Until::Refused),
];

#[tokio::test(flavor = "multi_thread")]
async fn case_22_no_file_and_no_process_of_a_sandbox_gains_anything_from_what_saves_it() {
    if !has_criu() {
        return;
    }
    let arena = Arena::start("22 Files and processes that wait for CRIU, which saves the sandbox").await;
    let host = HostCanary::new(&arena);
    arena.attacker.guest.clone().with_user("root").write_file(PLACE, format!("{PRELUDE}\n{PROBE}")).await.unwrap();
    arena.attacker.sh_root(&format!("python3 {PLACE} plant {}", host.file)).await.ok();
    let rights = Rights::of(&arena.attacker).await;

    assert_eq!(save_and_copy(&arena, &rights, true).await, Ok(()), "with no process but ours");
    for (attack, told, until) in ATTACKS {
        for who in Who::BOTH {
            let running = start(&arena, attack, who, &host).await;
            let saved = save_and_copy(&arena, &rights, until == Until::Restored).await;
            assert_goes_on(&arena, attack).await;
            let how = match saved {
                Err(reason) => format!("refused: {reason}"),
                Ok(()) if until == Until::Restored => "saved and restored".to_owned(),
                Ok(()) => "saved".to_owned(),
            };
            arena.table.held(told, who, how);
            end_all(&arena).await;
            drop(running);
        }
    }
    let mut running = Vec::new();
    for (attack, _, _) in ATTACKS.into_iter().filter(|(_, _, until)| *until == Until::Restored) {
        for who in Who::BOTH {
            running.push(start(&arena, attack, who, &host).await);
        }
    }
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(save_and_copy(&arena, &rights, true).await);
    }
    end_all(&arena).await;
    drop(running);
    let saved = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    arena.table.held_for_all("those that can be restored, all at once", format!("{saved} of {} saved", outcomes.len()));
    assert_eq!(save_and_copy(&arena, &rights, true).await, Ok(()), "none of it has left anything in the way");

    let ignored = "nobody reads, loads or runs it";
    arena.table.held("configuration, plugins and a cache of CRIU", Who::Root, ignored);
    arena.table.held("programs with the names of those that CRIU runs", Who::Root, ignored);
    host.assert_untouched();
    arena.finish().await;
}

/// A file and a process of the host.
struct HostCanary {
    file: String,
    process: Child,
}

impl HostCanary {
    fn new(arena: &Arena) -> Self {
        let file = arena.platform.state().path().join("canary").display().to_string();
        fs::write(&file, "untouched").unwrap();
        Self { file, process: Command::new("sleep").arg("3600").spawn().unwrap() }
    }

    fn assert_untouched(mut self) {
        assert_eq!(fs::read_to_string(&self.file).unwrap(), "untouched");
        assert_eq!(self.process.try_wait().unwrap(), None);
    }
}

impl Drop for HostCanary {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts an attack, and waits until it is at work.
async fn start(arena: &Arena, attack: &str, who: Who, host: &HostCanary) -> Process {
    let guest = arena.attacker.guest.clone().with_user(who.name());
    let command = format!("exec python3 {PLACE} {attack} {}", host.file);
    let mut process = guest.start(StartProcess::shell(&command)).await.unwrap();
    let mut said = String::new();
    while !said.contains("at work") {
        match process.next().await.unwrap() {
            Some(Event::Stdout(bytes) | Event::Stderr(bytes)) => said.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Event::End(_)) | None => panic!("{attack} as {}: {said}", who.name()),
            Some(_) => {}
        }
    }
    process
}

/// Ends all attacks. Those that fork meanwhile see a file that tells them to.
async fn end_all(arena: &Arena) {
    let kill = format!("touch /tmp/enough; while pkill -KILL -f '^[^ ]* {PLACE}'; do sleep 0.01; done; rm /tmp/enough");
    arena.attacker.sh_root(&kill).await.ok();
}

/// Takes a snapshot, and perhaps makes a sandbox of it. Returns the reason if either was refused. Whatever happened, no process has
/// other rights, and nothing that was planted is used.
async fn save_and_copy(arena: &Arena, rights: &Rights, with_copy: bool) -> Result<(), String> {
    let node = &arena.platform.node;
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).unwrap();
    let id = SnapshotId::from_random(bytes);
    let taken = node.snapshot(&arena.attacker.incarnation, &id, SnapshotKind::Memory).await;
    rights.assert_of_all(&arena.attacker);
    assert_not_used(&arena.attacker).await;
    if let Err(error) = taken {
        let NodeError::Memory { reason, .. } = error else { panic!("{error:?}") };
        return Err(checked(reason));
    }
    let made = match with_copy {
        true => Some(
            node.create(SandboxSpec {
                snapshot: Some(InitialSnapshot { id: id.clone(), files_only: false }),
                ..spec()
            })
            .await,
        ),
        false => None,
    };
    node.remove_snapshot(&id).await.unwrap();
    let Some(made) = made else { return Ok(()) };
    let copy = match made {
        Ok(incarnation) => arena.platform.find(&incarnation),
        Err(CreateError::Memory(reason)) => return Err(checked(reason)),
        Err(error) => panic!("{error:?}"),
    };
    rights.assert_of_all(&copy);
    assert_not_used(&copy).await;
    rights.assert_of_all(&copy);
    node.kill(&copy.incarnation).await.unwrap();
    Ok(())
}

/// It says what was in the way, and that is no right too much.
fn checked(reason: String) -> String {
    assert!(!reason.contains("than its sandbox allows") && !reason.contains("left no reason"), "{reason}");
    reason
}

async fn assert_not_used(sandbox: &TestSandbox) {
    let found = sandbox.sh_root(&format!("cat {CACHE}; ls {MARKERS} 2>/dev/null; true")).await.ok();
    assert_eq!(found, "not a cache");
}

/// The source works, and what was stopped for the save goes on.
async fn assert_goes_on(arena: &Arena, attack: &str) {
    assert_eq!(arena.attacker.sh("echo alive").await.ok(), "alive\n", "{attack}");
    // Its victims are stopped in between.
    if attack == "traces_siblings" {
        return;
    }
    for _ in 0..200 {
        let states = processes(arena.attacker.init_pid).into_iter().filter_map(|pid| status(&format!("/proc/{pid}")));
        if !states.into_iter().any(|status| field(&status, "State").starts_with('T')) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{attack}: a process stays stopped");
}

/// What the processes of a sandbox may have, as the host sees it.
struct Rights {
    bounding: String,
    filters: u32,
}

impl Rights {
    /// Those of a process that does nothing.
    async fn of(sandbox: &TestSandbox) -> Self {
        let idle = sandbox.guest.clone().with_user("root").start(StartProcess::shell("exec sleep 3600")).await.unwrap();
        let inside = idle.pid().to_string();
        let found = processes(sandbox.init_pid).into_iter().find_map(|pid| {
            let status = status(&format!("/proc/{pid}"))?;
            (field(&status, "NSpid").split_whitespace().next_back() == Some(&inside)).then_some(status)
        });
        let found = found.unwrap();
        assert_eq!(field(&found, "Seccomp"), "2");
        Self {
            bounding: field(&found, "CapBnd").to_owned(),
            filters: field(&found, "Seccomp_filters").parse().unwrap(),
        }
    }

    /// All threads of all processes but the guest.
    #[track_caller]
    fn assert_of_all(&self, sandbox: &TestSandbox) {
        let init = sandbox.init_pid;
        let map = fs::read_to_string(format!("/proc/{init}/uid_map")).unwrap();
        let numbers: Vec<u64> = map.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let ids = numbers[1]..numbers[1] + numbers[2];
        for pid in processes(init).into_iter().filter(|pid| *pid != init) {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for status in threads.filter_map(|thread| status(thread.path().to_str()?)) {
                for name in ["Uid", "Gid", "Groups"] {
                    let mut found = field(&status, name).split_whitespace().map(|id| id.parse().unwrap());
                    assert!(found.all(|id: u64| ids.contains(&id)), "{status}");
                }
                let filters: u32 = field(&status, "Seccomp_filters").parse().unwrap();
                assert!(field(&status, "Seccomp") == "2" && filters >= self.filters, "{status}");
                let bounding = |text: &str| u64::from_str_radix(text, 16).unwrap();
                for name in ["CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"] {
                    let more = bounding(field(&status, name)) & !bounding(&self.bounding);
                    assert_eq!(more, 0, "{status}");
                }
            }
        }
    }
}

/// All processes in the pid namespace of a sandbox, by the host's numbers.
fn processes(init: u32) -> BTreeSet<u32> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(init);
    assert!(own.is_some(), "the sandbox has ended");
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid| namespace(*pid) == own).collect()
}

fn status(place: &str) -> Option<String> {
    let status = fs::read_to_string(format!("{place}/status")).ok()?;
    // One that has ended has no rights.
    (!field(&status, "State").starts_with(['Z', 'X'])).then_some(status)
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().trim()
}
