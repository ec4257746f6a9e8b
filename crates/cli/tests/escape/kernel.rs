//! Cases 8 to 11: the kernel's surface.

use isopod_testkit::TestSandbox;
use isopod_wire::node::{NodeApi, PauseMode};

use crate::arena::Arena;
use crate::table::Who;

#[tokio::test]
async fn case_09_namespaces_sockets_and_system_calls_are_refused() {
    let arena = Arena::start(
        "9 Kernel calls: namespaces, socket families, io_uring, bpf, mounts, keys, foreign ABIs, core dumps",
    )
    .await;
    arena.probe(include_str!("probes/kernel_calls.py")).await;
    arena.finish().await;
}

#[tokio::test]
async fn case_10_and_11_host_files_devices_and_mounts_are_out_of_reach() {
    let arena = Arena::start("10 and 11 Host files in /proc and /sys, device nodes, mounts").await;
    let before = std::fs::read("/proc/sys/kernel/core_pattern").expect("a host has it");
    arena.probe(include_str!("probes/kernel_files.py")).await;
    assert_eq!(std::fs::read("/proc/sys/kernel/core_pattern").expect("a host has it"), before);
    arena.finish().await;
}

#[tokio::test]
async fn case_10_a_file_handle_of_the_host_opens_nothing() {
    let arena = Arena::start("10 File handles").await;
    let script = r#"
buffer = (ctypes.c_uint8 * 136)()
struct.pack_into("I", buffer, 0, 128)
mount_id = ctypes.c_int()
try:
    call(303, -100, ctypes.c_char_p(b"/usr"), ctypes.byref(buffer), ctypes.byref(mount_id), 0)
except OSError:
    # An overlay without an index has no handles; the handle of inode 2, the root of an ext4, is guessed easily.
    struct.pack_into("IiII", buffer, 0, 8, 1, 2, 0)
for place in ["/", "/usr", "/tmp", "/dev", "/proc"]:
    refused(f"open_by_handle_at on {place}", lambda: call(304, os.open(place, os.O_RDONLY), ctypes.byref(buffer), 0))
"#;
    arena.probe(script).await;
    arena.finish().await;
}

#[tokio::test]
async fn case_08_a_sandbox_can_neither_leave_its_cgroup_nor_thaw_itself() {
    let arena = Arena::start("8 cgroup: release_agent, leaving, raising limits, thawing").await;
    let find = "find / -xdev \\( -name release_agent -o -name cgroup.procs -o -name 'memory.*' -o -name cgroup.freeze \\) 2>/dev/null | wc -l";
    for who in Who::BOTH {
        assert_eq!(arena.attacker.sh_as(who.name(), find).await.ok().trim(), "0");
        arena.table.held("find a file of a cgroup outside its own read-only groups", who, "none there");
    }
    for who in Who::BOTH {
        let count = "nohup sh -c 'while true; do date +%s%N > /tmp/tick; done' >/dev/null 2>&1 & echo started";
        arena.attacker.sh_as(who.name(), count).await.ok();
        stays_frozen(&arena).await;
        arena.table.held("go on while paused", who, "frozen");
        arena.attacker.sh_root("pkill -f /tmp/tick; rm -f /tmp/tick").await;
    }
    arena.finish().await;
}

async fn stays_frozen(arena: &Arena) {
    let node = &arena.platform.node;
    let incarnation = &arena.attacker.incarnation;
    node.pause(incarnation, PauseMode::Memory).await.expect("it can be paused");
    let before = cpu_time(&arena.attacker);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(cpu_time(&arena.attacker), before, "something ran while it was paused");
    node.resume(incarnation).await.expect("it can be resumed");
}

/// What all processes of the sandbox have used, by the host's own view.
fn cpu_time(sandbox: &TestSandbox) -> u64 {
    let mut total = 0;
    for pid in pids_of(sandbox.init_pid) {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        total += [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum::<u64>();
    }
    total
}

/// Every process in the same pid namespace.
pub(crate) fn pids_of(init: u32) -> Vec<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(init);
    let all = std::fs::read_dir("/proc").expect("a host has it").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| wanted.is_some() && namespace(*pid) == wanted).collect()
}
