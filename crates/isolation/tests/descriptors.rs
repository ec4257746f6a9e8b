//! What the trusted processes hold that stand in a sandbox's namespaces: a real spawner prepares a sandbox and a zygote, and
//! their first processes are looked at while they wait. Needs root; skipped with a word otherwise.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use isopod_isolation::launch::{
    Launcher, Preparation, ProcOverrides, Role, RootLayers, RootStyle, Spawner, SpawnerOptions, ZygoteProgram,
    run_spawner,
};
use isopod_isolation::sys::process::{Fork, exit_now, fork};
use isopod_wire::Limits;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Ids that nothing else has.
const FIRST_ID: u32 = 1_910_000_000;
const ZYGOTE: u32 = 1_999_999_998;

fn main() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let spawner = start_spawner(directory.path());
    let failed = std::panic::catch_unwind(|| {
        for (name, role) in [
            ("a sandbox", Role::Sandbox { owner: FIRST_ID }),
            ("a sandbox of a zygote", Role::Sandbox { owner: ZYGOTE }),
            ("a zygote", zygote()),
        ] {
            a_first_process_that_waits_holds_its_channel_and_its_program(directory.path(), spawner, name, role);
        }
    })
    .is_err();
    let pid = Pid::from_raw(spawner.cast_signed());
    let _ = kill_process(pid.expect("a pid"), Signal::KILL);
    let _ = waitpid(pid, WaitOptions::empty());
    std::process::exit(i32::from(failed));
}

fn a_first_process_that_waits_holds_its_channel_and_its_program(state: &Path, spawner: u32, name: &str, role: Role) {
    let (channels, programs, uid) = match &role {
        Role::Sandbox { .. } => (1, 1, FIRST_ID),
        Role::Zygote(_) => (1, 0, ZYGOTE),
    };
    let launcher = prepare(state, role);
    let first = wait_for_first_process(spawner, uid);
    let held = descriptors(first);
    let count = |prefix: &str| held.iter().filter(|link| link.starts_with(prefix)).count();
    assert_eq!(count("socket:"), channels, "{name}: {held:?}");
    assert_eq!(count("/memfd:guest"), programs, "{name}: {held:?}");
    for wrong in ["/entrance", "mnt:", "net:", "user:", "anon_inode:"] {
        assert!(!held.iter().any(|link| link.contains(wrong)), "{name}: {held:?}");
    }
    assert_eq!(held.len(), 3 + channels + programs, "{name}: {held:?}");

    drop(launcher);
    while Path::new(&format!("/proc/{first}/fd/0")).exists() {
        std::thread::yield_now();
    }
}

fn zygote() -> Role {
    Role::Zygote(ZygoteProgram {
        id: ZYGOTE,
        program: "/usr/bin/none".to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
    })
}

fn start_spawner(state: &Path) -> u32 {
    let listener = new_socket();
    bind(&listener, &address(state)).expect("an address");
    listen(&listener, 8).expect("a listener");
    match fork().expect("one thread") {
        Fork::Child => {
            let ended = run_spawner(listener, &SpawnerOptions::default());
            exit_now(i32::from(ended.is_err()))
        }
        Fork::Parent { pid, .. } => pid,
    }
}

fn new_socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn address(state: &Path) -> SocketAddrUnix {
    SocketAddrUnix::new(state.join("spawner.sock")).expect("a short path")
}

fn prepare(state: &Path, role: Role) -> Launcher {
    let socket = new_socket();
    connect(&socket, &address(state)).expect("a spawner");
    let spawner = Spawner::connect(socket).expect("a spawner of this version");
    let box_directory = tempfile::tempdir_in(state).expect("a directory");
    let (layer, upper) = (box_directory.path().join("layer"), box_directory.path().join("upper"));
    let places = ["usr", "dev", "proc", "sys", "tmp", "run"].map(|name| layer.join(name));
    for directory in places.into_iter().chain([upper.join("root"), upper.join("root.work")]) {
        fs::create_dir_all(directory).expect("a directory");
    }
    let guest = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    let netns = File::open("/proc/self/ns/net").expect("a namespace");
    // What a launcher writes to its groups goes there.
    let entrance = File::create(box_directory.path().join("entrance")).expect("a file");
    let has_own_network = matches!(role, Role::Sandbox { owner: ZYGOTE });
    let mut launcher = spawner
        .prepare(&Preparation {
            role,
            first_id: FIRST_ID,
            netns: (!has_own_network).then(|| netns.as_fd()),
            cgroup_entrances: &[entrance],
            cgroup_views: &[],
            features: isopod_wire::KernelFeatures::default(),
            boot_id: None,
            last_pid: None,
            clocks: None,
            layers: RootLayers {
                root: vec![&layer],
                usr: Vec::new(),
                kept: None,
                upper: &upper,
                style: RootStyle::default(),
            },
            guest: guest.as_fd(),
            tmpfs_bytes: 1 << 20,
            host_name: "test",
            proc_overrides: &ProcOverrides::for_limits(&Limits::default()),
        })
        .expect("a launcher");
    launcher.wait().expect("a first process that waits");
    launcher
}

/// The one that has taken its ids: the launcher and the spawner are the host's root. A holder of a user namespace that is just
/// ending has them too, and holds nothing.
fn wait_for_first_process(spawner: u32, uid: u32) -> u32 {
    let is_it = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains(&format!("\nUid:\t{uid}\t")) && !descriptors(*pid).is_empty()
    };
    loop {
        let text = fs::read_to_string(format!("/proc/{spawner}/task/{spawner}/children")).expect("a spawner");
        let mut children = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        if let Some(pid) = children.find(is_it) {
            return pid;
        }
        std::thread::yield_now();
    }
}

fn descriptors(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).map(|link| link.display().to_string()).collect()
}
