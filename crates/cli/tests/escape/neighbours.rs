//! Case 12: what a sandbox can do to another, or to the host, through what kernels share.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use isopod_testkit::TestSandbox;

use crate::arena::Arena;
use crate::table::Who;

/// What the neighbour offers to whoever could see it. It answers with `ready` and then waits.
const OFFERS: &str = r#"
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
s = socket.socket(socket.AF_UNIX); s.bind("\0neighbour"); s.listen(8)
assert libc.shmget(4711, 4096, 0o1666) >= 0
assert libc.semget(4711, 1, 0o1666) >= 0
assert libc.msgget(4711, 0o1666) >= 0
assert libc.mq_open(b"/neighbour", os.O_CREAT | os.O_RDWR, 0o666, None) >= 0
for place in ["/dev/shm", "/tmp", "/run/user", "/home/user"]:
    os.makedirs(place, exist_ok=True)
    open(place + "/neighbours-file", "w").write("mine")
import fcntl
held = open("/dev/null"); fcntl.flock(held, fcntl.LOCK_EX)
print("ready", flush=True)
while True:
    open("/dev/null").close(); open("/dev/zero").close()
    time.sleep(0.01)
"#;

#[tokio::test]
async fn case_12_neighbours_and_host_share_nothing_that_can_be_reached() {
    let arena = Arena::start("12 Neighbours: processes, sockets, IPC, keyrings, shared memory, files").await;
    let name = format!("isopod-escape-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let _host = UnixListener::bind_addr(&address).expect("the name is free");
    offer(&arena.neighbour).await;
    let script = format!(
        "HOST_SOCKET = {name:?}\nHOST_PIDS = [{}, {}]\nSTATE = {:?}\n{}",
        std::process::id(),
        arena.neighbour.init_pid,
        arena.platform.state().path(),
        include_str!("probes/neighbours.py")
    );
    arena.probe(&script).await;
    arena.finish().await;
}

async fn offer(neighbour: &TestSandbox) {
    let guest = neighbour.guest.clone().with_user("root");
    guest.write_file("/root/offers.py", OFFERS).await.expect("it can be written");
    let mut offers = guest.start("exec python3 /root/offers.py").await.expect("it starts");
    loop {
        match offers.next().await.expect("it goes on") {
            Some(isopod_client::guest::Event::Stdout(text)) if text.starts_with(b"ready") => return,
            Some(isopod_client::guest::Event::Started(_)) => {}
            other => panic!("the neighbour said {other:?}"),
        }
    }
}

#[tokio::test]
async fn case_12_ids_and_names_of_the_host_stay_outside() {
    let arena = Arena::start("12 What a sandbox learns about its host").await;
    let state = arena.platform.state().path().to_string_lossy().into_owned();
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a host has it");
    for who in Who::BOTH {
        let mounts = arena.attacker.sh_as(who.name(), "cat /proc/self/mountinfo /proc/mounts").await.ok();
        assert!(!mounts.contains(&state) && !mounts.contains("/var/tmp"), "{mounts}");
        arena.table.held("host paths in mountinfo", who, "none");
        let seen = arena.attacker.sh_as(who.name(), "hostname; cat /etc/hostname /proc/sys/kernel/hostname").await;
        assert!(!seen.stdout().contains(host_name.trim()), "{}", seen.stdout());
        arena.table.held("the host's name", who, "not told");
        let ids = arena.attacker.sh_as(who.name(), "cat /proc/self/uid_map").await.ok();
        let words: Vec<&str> = ids.split_whitespace().collect();
        assert!(
            matches!(words[..], ["0", first, "65536"] if first.parse::<u32>().is_ok_and(|id| id > 65_536)),
            "{ids}"
        );
        arena.table.held("be a user of the host", who, "own range of ids");
        let capabilities = arena.attacker.sh_as(who.name(), "grep Cap /proc/self/status").await.ok();
        for line in capabilities.lines() {
            let set = u64::from_str_radix(line.split_whitespace().last().expect("a value"), 16).expect("a set");
            // SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, NET_ADMIN, NET_RAW, SYS_TIME, SYS_RESOURCE, BPF
            for forbidden in [16, 17, 19, 21, 22, 12, 13, 25, 24, 39, 2, 38] {
                assert_eq!(set & (1 << forbidden), 0, "{line} has capability {forbidden}");
            }
        }
        arena.table.held("dangerous capabilities", who, "not even in the bounding set");
    }
    arena.finish().await;
}

#[tokio::test]
async fn case_12_figures_in_proc_are_the_sandboxes_own_and_move() {
    let arena = Arena::start("12 Figures in /proc: memory, CPUs, uptime, load").await;
    let figure = |text: &str, row: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(row)).unwrap_or_else(|| panic!("no {row} in {text}"));
        line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
    };
    let read =
        "cat /proc/meminfo; sed 's/^/up /' /proc/uptime; sed 's/^/load /' /proc/loadavg; grep -v intr /proc/stat";
    let host_uptime = std::fs::read_to_string("/proc/uptime").expect("a host has it");
    for who in Who::BOTH {
        let before = arena.attacker.sh_as(who.name(), &format!("sleep 1.5; {read}")).await.ok();
        assert_eq!(figure(&before, "MemTotal:"), (1 << 20) as f64);
        assert!(figure(&before, "up ") < figure(&host_uptime, ""), "the host's uptime");
        // However busy the host is: the figures are read once the program has had its share.
        let spin = "import time\nx = bytearray(300 << 20)\nwhile True:\n    if time.process_time() > 1.5: open(\"/tmp/spun\", \"w\")";
        let busy = format!(
            "rm -f /tmp/spun; python3 -c '{spin}' & until [ -e /tmp/spun ]; do sleep 0.2; done; sleep 1.5; {read}; kill $!"
        );
        let after = arena.attacker.sh_as(who.name(), &busy).await.ok();
        assert!(figure(&after, "MemAvailable:") < figure(&before, "MemAvailable:") - 250_000.0, "{before}\n{after}");
        assert!(figure(&after, "MemFree:") > 0.0);
        assert!(figure(&after, "up ") > figure(&before, "up ") + 1.0, "{after}");
        assert!(figure(&after, "cpu ") > figure(&before, "cpu ") + 50.0, "{after}");
        assert!(figure(&after, "load ") > 0.0, "{after}");
        assert_eq!(after.lines().filter(|line| line.starts_with("cpu")).count(), 3);
        arena.table.held("read the host's memory, CPUs, uptime and load", who, "sees its own");
    }
    arena.finish().await;
}
