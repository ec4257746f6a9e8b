//! Warm interpreters: what runs in a zygote, what enters a sandbox, and what sandboxes of one zygote share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use isopod_node::PoolSize;
use isopod_testkit::{Platform, StateDir, TestSandbox, spec};
use isopod_wire::node::{NodeApi, PauseMode, SandboxSpec};
use serde_json::{Value, json};

use crate::BINARY;
use crate::exhaustion::{TAKE_KERNEL_COUNTS, take_what_the_kernel_counts};
use crate::table::{Table, Who};

const TEMPLATE: &str = "code-interpreter-v1";
/// A zygote imports for seconds on a cold disk.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A process of the host that the attacks aim at.
struct Victim(Child);

impl Victim {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("sleep starts"))
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).expect("the victim lives")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn state_with_template() -> StateDir {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    state
}

async fn open(state: StateDir) -> Platform {
    Platform::open(state, PoolSize { ready: 1, prepared: 1 }).await
}

/// A sandbox whose interpreter came from the zygote.
async fn warm_sandbox(platform: &Platform) -> TestSandbox {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let sandbox = platform.sandbox_of(SandboxSpec { template: TEMPLATE.to_owned(), ..spec() }).await;
        let seen = sandbox.sh_root("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.ok();
        if seen.contains("run.py zygote") {
            return sandbox;
        }
        platform.node.kill(&sandbox.incarnation).await.expect("a sandbox ends");
        assert!(Instant::now() < deadline, "no warm interpreter comes: {seen}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The one generation of the base, where the operator's own files would be.
fn base_usr(state: &Path) -> PathBuf {
    let mut generations = fs::read_dir(state.join("layers")).expect("layers").flatten().map(|entry| entry.path());
    generations.find(|path| path.join("usr").is_dir()).expect("a base").join("usr")
}

/// Makes the zygote run an attack before anything else.
fn plant(state: &Path, script: &str) {
    let packages = base_usr(state).join("lib/python3/dist-packages");
    fs::create_dir_all(&packages).expect("a directory");
    fs::write(packages.join("zz_attack.pth"), "import zz_attack\n").expect("a file");
    fs::write(packages.join("zz_attack.py"), script).expect("a file");
}

fn plant_attack(state: &Path, victim: &Victim) {
    plant(state, include_str!("probes/zygote.py"));
    fs::write(base_usr(state).join("lib/zz_victim"), victim.0.id().to_string()).expect("a file");
}

/// What the attack in the zygote has to say, once it has seen an order.
async fn report(state: &Path) -> Value {
    words(state, "zz_report.json", |report| report["orders"].as_u64() > Some(0)).await
}

/// What the process has to say that races with every sandbox that is made, once it has looked at more processes than this.
async fn race(state: &Path, looked: u64) -> Value {
    words(state, "zz_race.json", |race| race["looked"].as_u64() > Some(looked)).await
}

async fn words(state: &Path, name: &str, is_enough: impl Fn(&Value) -> bool) -> Value {
    let tag = fs::read_to_string(state.join("tag")).expect("a tag");
    let group = format!("isopod-{}", tag.trim());
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let pids = fs::read_dir("/proc").expect("a host has it").flatten().map(|entry| entry.path());
        let ours = pids.filter(|path| fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(&group)));
        let mut reports = ours.filter_map(|path| fs::read(path.join("root/tmp").join(name)).ok());
        let seen = reports.find_map(|text| serde_json::from_slice::<Value>(&text).ok().filter(&is_enough));
        if let Some(report) = seen {
            return report;
        }
        assert!(Instant::now() < deadline, "the attack in the zygote says nothing");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_21_code_in_a_zygote_has_no_hold_on_the_host() {
    let table = Table::new("21 Code in a zygote, outside of all sandboxes");
    let state = state_with_template();
    let victim = Victim::start();
    plant_attack(state.path(), &victim);
    let groups = victim.file("cgroup");
    let platform = open(state).await;
    let sandbox = warm_sandbox(&platform).await;

    let report = report(platform.state().path()).await;
    let refused = [
        ("signal a process of the host", "EPERM"),
        ("signal it by a pidfd", "EPERM"),
        ("trace it", "EPERM"),
        ("take a descriptor of it", "EPERM"),
        ("read its memory", "EPERM"),
        ("take a descriptor of its own", "EPERM"),
        ("read its own memory", "EPERM"),
        ("trace a child of its own", "EPERM"),
        ("find it in /proc", "ENOENT"),
        ("change its limits", "EPERM"),
        ("change its priority", "EPERM"),
        ("talk to the network", "ENETUNREACH"),
        ("become root", "EPERM"),
        ("write a gigabyte", "EDQUOT"),
        ("write a pid to a namespace of an order", "EBADF"),
        ("change a namespace of an order", "EINVAL"),
        ("open a group beside a namespace of an order", "ENOTDIR"),
        ("write a pid to a file in memory of an order", "EPERM"),
        ("change a file in memory of an order", "EPERM"),
        ("open a group beside a file in memory of an order", "ENOTDIR"),
        ("change a socket of an order", "EINVAL"),
        ("open a group beside a socket of an order", "ENOTDIR"),
    ];
    assert_eq!(report["kinds"], json!(["a file in memory", "a namespace", "a socket"]), "{report}");
    for (attack, how) in refused {
        assert_eq!(report[attack], how, "{attack}: {report}");
        table.held_for_all(attack, how);
    }

    // Sandboxes are made while the attack looks for the processes that make them.
    let before = race(platform.state().path(), 0).await;
    for _ in 0..4 {
        platform.node.kill(&warm_sandbox(&platform).await.incarnation).await.expect("it ends");
    }
    // It looked before, while and after they were made.
    let during = race(platform.state().path(), before["looked"].as_u64().expect("a number")).await;
    let after = race(platform.state().path(), during["looked"].as_u64().expect("a number")).await;
    assert_eq!(after["taken"], 0, "{before} {during} {after}");
    table.held_for_all("take descriptors of processes that make a sandbox", "EPERM");

    // The victim is in no group of the sandbox: what happens to the sandbox does not happen to it.
    assert_eq!(victim.file("cgroup"), groups);
    platform.node.pause(&sandbox.incarnation, PauseMode::Memory).await.expect("it pauses");
    assert_eq!(victim.file("cgroup"), groups);
    platform.node.kill(&sandbox.incarnation).await.expect("it ends");
    assert!(victim.file("stat").contains(" S "), "the victim sleeps on: {}", victim.file("stat"));
    table.held_for_all("pause and kill a sandbox whose groups were aimed at a process of the host", "it goes on");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_21_an_interpreter_that_keeps_its_capabilities_is_never_handed_out() {
    let table = Table::new("21 An interpreter that keeps its capabilities");
    let state = state_with_template();
    plant(state.path(), include_str!("probes/zygote_rights.py"));
    let platform = open(state).await;
    let deadline = Instant::now() + TIMEOUT;
    let mut refused = 0;
    while refused < 3 {
        assert!(Instant::now() < deadline, "the interpreter is not refused");
        match platform.node.create(SandboxSpec { template: TEMPLATE.to_owned(), ..spec() }).await {
            Ok(incarnation) => {
                // Made before there was a zygote.
                let sandbox = platform.find(&incarnation);
                let seen = sandbox.sh_root("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.ok();
                assert!(!seen.contains("run.py zygote"), "{seen}");
                platform.node.kill(&incarnation).await.expect("a sandbox ends");
            }
            Err(error) => {
                let causes = isopod_wire::error_chain(&error);
                assert!(causes.contains("has more than its sandbox allows: CapPrm"), "{causes}");
                refused += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let report = report(platform.state().path()).await;
    assert_eq!(report["replaced"], true, "{report}");
    table.held_for_all(
        "enter a sandbox and keep every capability in it",
        "noticed from outside, the sandbox is removed",
    );
    platform.finish().await;
}

/// What is known on disk of all executions of the server.
fn records(state: &Path) -> Vec<Value> {
    let boxes = fs::read_dir(state.join("homes/serve/boxes")).expect("a home").flatten();
    let texts = boxes.filter_map(|entry| fs::read(entry.path().join("record.json")).ok());
    texts.filter_map(|text| serde_json::from_slice(&text).ok()).collect()
}

/// Slots and processes of all zygotes that have a record. A dead one has it as long as its sandboxes live.
fn zygotes(state: &Path) -> Vec<(u64, u64)> {
    let zygotes = records(state).into_iter().filter(|record| record["is_zygote"] == true);
    zygotes.filter_map(|record| Some((record["slot"].as_u64()?, record["init"]["pid"].as_u64()?))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_21_the_user_of_a_dead_zygote_goes_to_nobody_while_its_sandboxes_live() {
    let table = Table::new("21 What a dead zygote leaves");
    let platform = open(state_with_template()).await;
    let sandbox = warm_sandbox(&platform).await;
    let state = platform.state().path().to_owned();
    let owner = |execution: &str| {
        let found = records(&state).into_iter().find(|record| record["execution"] == execution);
        found.and_then(|record| record["owner"].as_u64())
    };
    let slot = owner(sandbox.incarnation.execution.as_str()).expect("it belongs to a zygote");
    let [(first, pid)] = zygotes(&state)[..] else { panic!("one zygote: {:?}", zygotes(&state)) };
    assert_eq!(slot, first);
    let claim = Path::new("/run/isopod/slots").join(slot.to_string());
    let words = fs::read_link(&claim).expect("its slot is claimed");

    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs").success());
    let deadline = Instant::now() + TIMEOUT;
    while zygotes(&state).iter().all(|(other, _)| *other == first) {
        assert!(Instant::now() < deadline, "no other zygote comes");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(fs::read_link(&claim).ok().as_ref(), Some(&words), "its slot is free although its sandbox lives");
    assert_eq!(sandbox.sh("echo alive").await.ok(), "alive\n");
    table.held_for_all("get the user of a dead zygote whose sandboxes live", "its slot stays claimed");
    // Which also looks for claims that nobody has any more.
    platform.finish().await;
    assert_ne!(fs::read_link(&claim).ok(), Some(words), "its slot is claimed although its sandboxes are gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_21_what_entered_a_sandbox_has_the_rights_of_its_root_and_no_more() {
    let table = Table::new("21 What a zygote left in a sandbox");
    let platform = open(state_with_template()).await;
    let sandbox = warm_sandbox(&platform).await;
    let find = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q '^/usr/bin/python3 .*run.py zygote' && basename $p; done; true";
    let mut pids = sandbox.sh_root(find).await.ok();
    let deadline = Instant::now() + TIMEOUT;
    // The interpreter, and a moment later its kernel.
    while pids.lines().count() < 2 {
        assert!(Instant::now() < deadline, "the interpreter has no kernel: {pids}");
        pids = sandbox.sh_root(find).await.ok();
    }
    let kept = format!("{:016x}", isopod_isolation::kept_capabilities().fold(0u64, |set, number| set | 1 << number));
    for pid in pids.lines() {
        let status = sandbox.sh_root(&format!("cat /proc/{pid}/status")).await.ok();
        let field = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
            found.map(str::trim).unwrap_or_else(|| panic!("{name} in {status}"))
        };
        for name in ["CapInh", "CapAmb"] {
            assert_eq!(field(name), "0000000000000000", "{name} of {pid}");
        }
        for name in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(field(name), kept, "{name} of {pid}");
        }
        assert_eq!((field("Seccomp"), field("NoNewPrivs")), ("2", "0"));
        assert_eq!(field("Uid").split_whitespace().collect::<Vec<_>>(), ["0"; 4]);
    }
    // Seen from the host, root inside is the first of the sandbox's own ids.
    let map = fs::read_to_string(format!("/proc/{}/uid_map", sandbox.init_pid)).expect("the guest lives");
    assert!(map.split_whitespace().nth(1).is_some_and(|id| id.parse::<u32>().is_ok_and(|id| id > 65_535)), "{map}");
    table.held_for_all("capabilities, filter and ids of the interpreter", "those of the sandbox's root");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_15_sandboxes_of_one_zygote_do_not_take_each_others_kernel_limits() {
    let table = Table::new("15 Exhaustion: limits that the kernel counts per user, between sandboxes of one zygote");
    let platform = open(state_with_template()).await;
    let (attacker, neighbour) = (warm_sandbox(&platform).await, warm_sandbox(&platform).await);
    for who in Who::BOTH {
        take_what_the_kernel_counts(&attacker, &neighbour, who).await;
        table.held(TAKE_KERNEL_COUNTS, who, "the neighbour has its own");
    }
    platform.finish().await;
}
