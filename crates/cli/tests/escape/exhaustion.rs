//! Case 15: taking all there is of something. The sandbox gets an error, its guest lives, its neighbour notices nothing,
//! and everything comes back.

use std::time::Duration;

use isopod_client::guest::{Code, Codec, Event, GuestError, PtySize, Signal, StartProcess};
use isopod_testkit::{TestSandbox, spec};
use isopod_wire::node::{NodeApi, SandboxSpec};
use isopod_wire::{Bytes, Limits};

use crate::arena::Arena;
use crate::table::Who;

/// Forks until the kernel refuses, says so, and holds what it has.
const FORK_BOMB: &str = r#"exec python3 -c '
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(300)
    except OSError as error:
        print("full", flush=True)
        time.sleep(300)
'"#;

#[tokio::test]
async fn case_15_a_fork_bomb_stays_within_its_limit() {
    let limits = Limits { pids: 64, ..Limits::default() };
    let arena = Arena::start_with("15 Exhaustion: processes", limits).await;
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let mut bomb = guest.start(FORK_BOMB).await.expect("it starts");
        until_says(&mut bomb, "full").await;
        match arena.attacker.try_sh_as(who.name(), "true").await {
            Err(GuestError::Refused { code: Code::ResourceExhausted, .. }) => {}
            other => panic!("a process more than the limit: {other:?}"),
        }
        guest.write_file("/tmp/while-full", "written").await.expect_err("an upload needs a thread");
        assert!(guest.list_dir("/", 1).await.expect("the guest reads directories").len() > 5);
        assert_eq!(&guest.read_file("/etc/hostname").await.unwrap().collect().await.unwrap()[..], b"isopod\n");
        arena.assert_others_alive().await;
        bomb.handle().signal(Signal::Kill).await.expect("the guest answers");
        until_end(bomb).await;
        arena.assert_alive().await;
        arena.table.held("fork bomb", who, "stops at the limit");
    }
    // One that nobody can catch any more: it goes with its sandbox.
    for who in Who::BOTH {
        let doomed = arena.platform.sandbox_of(SandboxSpec { limits, ..spec() }).await;
        let _ = doomed.try_sh_as(who.name(), "bomb() { bomb | bomb & }; bomb; sleep 1").await;
        arena.assert_others_alive().await;
        arena.platform.node.kill(&doomed.incarnation).await.expect("the node ends it");
        arena.table.held("fork bomb that breeds faster than it is killed", who, "goes with its sandbox");
    }
    arena.finish().await;
}

#[tokio::test]
async fn case_15_memory_runs_out_inside_and_nowhere_else() {
    let limits = Limits { memory: Bytes::mib(256), ..Limits::default() };
    let arena = Arena::start_with("15 Exhaustion: memory", limits).await;
    let take_all = "python3 -c 'x = [bytearray(1 << 20) for _ in range(1024)]'";
    let many = "for i in $(seq 40); do python3 -c 'x = bytearray(30 << 20); import time; time.sleep(3)' & done; wait";
    let tmpfs = "head -c 1G /dev/zero > /dev/shm/full; code=$?; rm -f /dev/shm/full; exit $code";
    let small = "python3 -c 'import os\nos.makedirs(\"/tmp/many\")\nfor i in range(10**7): open(f\"/tmp/many/{i}\", \"w\").close()'";
    let shared = "python3 -c 'import mmap\nx = mmap.mmap(-1, 1 << 30)\nx.write(b\"x\" * (1 << 30))'";
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        for (attack, command) in [
            ("allocate", take_all),
            ("fill a tmpfs", tmpfs),
            ("fill a tmpfs with empty files", small),
            ("shared memory", shared),
        ] {
            assert_ne!(arena.attacker.sh_as(who.name(), command).await.code(), 0, "{attack} as {}", who.name());
            // By the guest: with all memory in use a shell may not even start.
            if guest.exists("/tmp/many").await.expect("the guest answers") {
                guest.remove("/tmp/many").await.expect("the guest removes files");
            }
            arena.assert_alive().await;
            arena.table.held(attack, who, "ended inside");
        }
        arena.attacker.sh_as(who.name(), many).await;
        arena.assert_alive().await;
        arena.table.held("allocate in many processes", who, "ended inside");
        let immune = arena.attacker.sh_as(who.name(), "echo -1000 > /proc/self/oom_score_adj").await;
        assert_ne!(immune.code(), 0);
        arena.table.held("make oneself safe from the OOM killer", who, "refused");
    }
    arena.finish().await;
}

#[tokio::test]
async fn case_15_a_full_disk_is_full_for_its_sandbox_only() {
    let limits = Limits { disk: Some(Bytes::mib(64)), ..Limits::default() };
    let arena = Arena::start_with("15 Exhaustion: disk and inodes", limits).await;
    for who in Who::BOTH {
        let fill = "head -c 200M /dev/zero > ~/full";
        let full = arena.attacker.sh_as(who.name(), fill).await;
        assert_ne!(full.code(), 0, "200 MB went onto a disk of 64");
        assert!(full.stderr().contains("quota") || full.stderr().contains("space"), "{}", full.stderr());
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let refused = guest.write_file("upload", vec![b'x'; 8 << 20]).await.expect_err("there is no room");
        assert_eq!(refused.code(), Some(Code::ResourceExhausted), "{refused:?}");
        arena.neighbour.sh("head -c 20M /dev/zero > ~/much && sync ~/much && rm ~/much").await.ok();
        arena.assert_others_alive().await;
        arena.attacker.sh_as(who.name(), "rm -f ~/full ~/upload; sync").await.ok();
        arena.assert_alive().await;
        arena.table.held("fill the disk", who, "stops at the limit");
        // A tree too deep to be walked by recursion or by whole paths must still go with its sandbox.
        let deep = "python3 -c 'import os\nfor _ in range(3000): os.mkdir(\"d\"); os.chdir(\"d\")'";
        arena.attacker.sh_as(who.name(), deep).await.ok();
        arena.table.held("leave directories 3,000 deep", who, "removed with the sandbox");
        let inodes = "mkdir -p ~/many && cd ~/many && python3 -c 'for i in range(30000): open(str(i), \"w\").close()'";
        arena.attacker.sh_as(who.name(), inodes).await;
        arena.neighbour.sh("mkdir ~/few && cd ~/few && touch $(seq 100) && rm -r ~/few").await.ok();
        arena.attacker.sh_as(who.name(), "rm -rf ~/many; sync").await;
        arena.assert_alive().await;
        arena.table.held("take all inodes", who, "the neighbour has its own");
    }
    arena.finish().await;
}

#[tokio::test]
async fn case_15_descriptors_terminals_and_zombies_stay_their_owners_problem() {
    let arena = Arena::start("15 Exhaustion: descriptors, terminals, zombies, signals, listings").await;
    for who in Who::BOTH {
        take_all_descriptors(&arena, who).await;
        take_all_terminals(&arena, who).await;
        leave_zombies(&arena, who).await;
        ignore_sigterm(&arena, who).await;
        list_many_files(&arena, who).await;
        arena.assert_alive().await;
    }
    arena.finish().await;
}

async fn take_all_descriptors(arena: &Arena, who: Who) {
    let take = r#"python3 -c '
import os, time
held = []
try:
    while True:
        held.append(os.open("/dev/null", 0))
except OSError as error:
    print("full", len(held), flush=True)
    time.sleep(300)
'"#;
    let guest = arena.attacker.guest.clone().with_user(who.name());
    let mut taking = Vec::new();
    for _ in 0..4 {
        let mut process = guest.start(take).await.expect("it starts");
        until_says(&mut process, "full").await;
        taking.push(process);
    }
    arena.assert_alive().await;
    end_all(taking).await;
    arena.table.held("open files", who, "stops at the limit");
}

async fn take_all_terminals(arena: &Arena, who: Who) {
    let take = r#"python3 -c '
import os, time
held = []
try:
    while True:
        held.append(os.openpty())
except OSError as error:
    print("full", len(held), flush=True)
    time.sleep(300)
'"#;
    let guest = arena.attacker.guest.clone().with_user(who.name());
    let mut process = guest.start(take).await.expect("it starts");
    let said = until_says(&mut process, "full").await;
    let count: u32 = said.trim().rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(count <= 64, "{count} terminals");
    let terminal = || StartProcess::shell("tty").pty(PtySize { cols: 80, rows: 24 });
    guest.run(terminal()).await.expect_err("no terminal is left");
    let other = arena.neighbour.guest.run(terminal()).await.expect("the neighbour has its own");
    assert!(other.text().contains("/dev/pts/"), "{}", other.text());
    end_all(vec![process]).await;
    guest.run(terminal()).await.expect("terminals came back");
    arena.table.held("open terminals", who, format!("stops at {count}"));
}

async fn leave_zombies(arena: &Arena, who: Who) {
    let orphans = r#"python3 -c '
import os
for _ in range(300):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
'"#;
    arena.attacker.sh_as(who.name(), orphans).await.ok();
    let count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '";
    let mut zombies = String::new();
    for _ in 0..100 {
        zombies = arena.attacker.sh_as(who.name(), count).await.stdout();
        if zombies == "0\n" {
            break;
        }
    }
    assert_eq!(zombies, "0\n");
    arena.table.held("leave zombies", who, "collected by the guest");
}

async fn ignore_sigterm(arena: &Arena, who: Who) {
    let guest = arena.attacker.guest.clone().with_user(who.name());
    let mut deaf = guest.start("trap '' TERM; echo deaf; while true; do sleep 1; done").await.expect("it starts");
    until_says(&mut deaf, "deaf").await;
    assert!(deaf.handle().signal(Signal::Term).await.expect("the guest answers"));
    assert!(deaf.handle().signal(Signal::Kill).await.expect("the guest answers"));
    until_end(deaf).await;
    let late = StartProcess::shell("trap '' TERM; sleep 1000").timeout(Duration::from_millis(300));
    let late = guest.run(late).await.expect_err("its time is over");
    assert_eq!(late.code(), Some(Code::DeadlineExceeded), "{late:?}");
    arena.table.held("ignore SIGTERM", who, "killed");
}

async fn list_many_files(arena: &Arena, who: Who) {
    let make = "mkdir /tmp/many && cd /tmp/many && python3 -c 'for i in range(100000): open(str(i), \"w\").close()'";
    arena.attacker.sh_as(who.name(), make).await.ok();
    let guest = arena.attacker.guest.clone().with_user(who.name());
    assert_eq!(guest.list_dir("/tmp/many", 1).await.expect("a long list").len(), 100_000);
    arena.attacker.sh_as(who.name(), "rm -r /tmp/many").await.ok();
    arena.table.held("list 100,000 files", who, "all listed");
}

#[tokio::test]
async fn case_15_two_gigabytes_of_output_arrive_and_the_guest_stays_small() {
    const FLOOD: u64 = 2 << 30;
    let arena = Arena::start("15 Exhaustion: output").await;
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name()).with_codec(Codec::Binary);
        let mut flood =
            guest.start(StartProcess::shell(format!("head -c {FLOOD} /dev/zero"))).await.expect("it starts");
        let mut received = 0;
        loop {
            match flood.next().await.expect("the stream goes on") {
                Some(Event::Stdout(bytes)) => received += bytes.len() as u64,
                Some(Event::End(ended)) => break assert!(ended.is_success()),
                _ => {}
            }
        }
        assert_eq!(received, FLOOD);
        arena.table.held("2 GB of output", who, "every byte arrives");
        // Nobody reads this one: the process has to wait, the guest must not keep it.
        let stuck = guest.start(StartProcess::shell("cat /dev/zero")).await.expect("it starts");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let peak = peak_memory(&arena.attacker);
        assert!(peak < 48 << 20, "the guest took {peak} bytes");
        arena.table.held("output that nobody reads", who, format!("guest below {} MB", 48));
        end_all(vec![stuck]).await;
        arena.assert_alive().await;
    }
    arena.finish().await;
}

/// Fills the buffers of connections to itself, as many and as full as it gets them.
const FILL_SOCKETS: &str = r#"python3 -c '
import socket, time
held = []
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
def fill(s):
    s.setblocking(False)
    held.append(s)
    try:
        # A datagram that finds no room is lost without an error.
        for _ in range(200):
            s.send(b"x" * 60000)
    except OSError:
        pass
try:
    for _ in range(600):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        s.connect(server.getsockname())
        held.append(server.accept()[0])
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        fill(s)
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        u.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        u.bind(("127.0.0.1", 0)); u.connect(u.getsockname()); fill(u)
        a, b = socket.socketpair(); held.append(b); fill(a)
except OSError as error:
    pass
print("full", flush=True)
time.sleep(300)
'"#;

#[tokio::test]
async fn case_15_buffers_of_sockets_count_as_memory() {
    let limits = Limits { memory: Bytes::mib(128), ..Limits::default() };
    let arena = Arena::start_with("15 Exhaustion: buffers of sockets", limits).await;
    for who in Who::BOTH {
        let before = socket_pages();
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let mut filling = guest.start(FILL_SOCKETS).await.expect("it starts");
        // It may also be killed for taking too much.
        while !matches!(filling.next().await.expect("it goes on"), Some(Event::Stdout(_) | Event::End(_))) {}
        let taken = socket_pages().saturating_sub(before) * PAGE;
        assert!(taken < 128 << 20, "{} MB of buffers in a sandbox of 128", taken >> 20);
        arena.assert_others_alive().await;
        filling.handle().signal(Signal::Kill).await.expect("the guest answers");
        arena.assert_alive().await;
        arena.table.held("fill socket buffers", who, "stops at the limit");
    }
    arena.finish().await;
}

const PAGE: u64 = 4096;

/// Pages in the buffers of all TCP and UDP sockets of the host.
fn socket_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").expect("a host has it");
    let mut words = text.split_whitespace();
    let mut pages = 0;
    while let Some(word) = words.next() {
        if word == "mem" {
            pages += words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    pages
}

/// The most that the guest ever had resident.
fn peak_memory(sandbox: &TestSandbox) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.init_pid)).expect("the guest lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel says");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[tokio::test]
async fn case_15_limits_per_user_of_the_kernel_are_not_shared() {
    let arena = Arena::start("15 Exhaustion: limits that the kernel counts per user").await;
    let take = |hold: u32| {
        format!(
            r#"python3 -c '
import ctypes, os, fcntl, time
libc = ctypes.CDLL(None, use_errno=True)
instances = 0
while libc.inotify_init1(0) >= 0 and instances < 100000:
    instances += 1
pipes = 0
try:
    while pipes < 20000:
        r, w = os.pipe(); pipes += 1
        fcntl.fcntl(w, 1031, 1 << 20)
except OSError:
    pass
print("took", instances, flush=True)
time.sleep({hold})
'"#
        )
    };
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let mut taking = guest.start(take(300).as_str()).await.expect("it starts");
        let said = until_says(&mut taking, "took").await;
        assert!(said.trim() != "took 0", "{said}");
        for other in Who::BOTH {
            let own = arena.neighbour.sh_as(other.name(), &take(0)).await.ok();
            assert!(own.trim() != "took 0", "the neighbour got {own}");
        }
        arena.assert_others_alive().await;
        end_all(vec![taking]).await;
        arena.table.held("take all inotify instances and pipe pages", who, "the neighbour has its own");
        take_what_the_kernel_counts(&arena.attacker, &arena.neighbour, who).await;
        arena.assert_others_alive().await;
        arena.table.held(TAKE_KERNEL_COUNTS, who, "the neighbour has its own");
    }
    arena.finish().await;
}

/// What [`take_what_the_kernel_counts`] tries.
pub(crate) const TAKE_KERNEL_COUNTS: &str =
    "take all inotify instances, message queues, queued signals and locked memory";

/// One sandbox takes all it can, as this user and as all that this user can become. Another one, as both of its users,
/// still gets some of each.
pub(crate) async fn take_what_the_kernel_counts(attacker: &TestSandbox, neighbour: &TestSandbox, who: Who) {
    for sandbox in [attacker, neighbour] {
        let script = include_str!("probes/kernel_counts.py");
        sandbox.guest.write_file("/tmp/take.py", script).await.expect("the probe can be written");
    }
    let guest = attacker.guest.clone().with_user(who.name());
    let mut taking = guest.start("python3 /tmp/take.py 200000 20 300").await.expect("it starts");
    let took = until_says(&mut taking, "all taken").await;
    for other in Who::BOTH {
        let own = neighbour.sh_as(other.name(), "python3 /tmp/take.py 10 0 0").await.ok();
        assert!(own.contains("took inotify=10 queues=10 signals=10 pages=10"), "took {took}, left {own}");
    }
    end_all(vec![taking]).await;
    attacker.sh_root("pkill -9 -f take.py; ipcs -m | awk '/0x/{print $2}' | xargs -r -n1 ipcrm -m").await;
}

/// Reads until this word is printed and gives the text.
pub(crate) async fn until_says(process: &mut isopod_client::guest::Process, word: &str) -> String {
    let mut text = String::new();
    while !(text.contains(word) && text.ends_with('\n')) {
        match process.next().await.expect("the stream goes on") {
            Some(Event::Stdout(bytes) | Event::Stderr(bytes)) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Event::Started(_)) => {}
            other => panic!("waited for {word:?}, got {text:?} and {other:?}"),
        }
    }
    text
}

async fn until_end(mut process: isopod_client::guest::Process) {
    while !matches!(process.next().await.expect("the stream goes on"), Some(Event::End(_)) | None) {}
}

pub(crate) async fn end_all(processes: Vec<isopod_client::guest::Process>) {
    for process in processes {
        process.handle().signal(Signal::Kill).await.expect("the guest answers");
        until_end(process).await;
    }
}
