//! The sandbox's first process, from the clone until it becomes the guest.
//!
//! Everything that is the same for all sandboxes comes before the wait: the root, the filter, the capabilities. After
//! it come the overrides of `/proc`, if the limits differ from the expected ones, and the exec.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::mount::{MountAttrFlags, UnmountFlags, mount_bind, mount_bind_recursive, unmount};
use rustix::process::{Resource, Rlimit, chdir, getrlimit, setrlimit, setsid, umask};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::channel::Channel;
use super::message::{LaunchOrder, PrepareOrder, Progress};
use super::proc_overrides::ProcOverrides;
use super::root::{EMPTY_DIRECTORY, NEW_ROOT, directory_in, filesystem};
use super::step::{Failure, Step};
use crate::capabilities::drop_all_but_kept;
use crate::cgroup::CgroupView;
use crate::sys::cred::{clear_groups, new_session_keyring, set_group_ids, set_user_ids};
use crate::sys::mount::{TreeOptions, attach, clone_tree, pivot_to_current_directory, set_tree_options};
use crate::sys::process::{
    close_from_on_exec, exec_fd, forbid_core_dumps, move_fd_above, place_fd, reset_signals, set_host_name,
};
use crate::sys::seccomp::{self, Instruction};

/// Files of `/proc` that reveal or reach the host. Each is covered by `/dev/null`.
#[rustfmt::skip]
const MASKED_FILES: &[(&str, &str)] = &[
    ("kcore", "the host's memory"),
    ("kmsg", "the host's log"),
    ("keys", "keyrings of all users"),
    ("key-users", "keyrings of all users"),
    ("kallsyms", "addresses of the kernel"),
    ("config.gz", "how the kernel was built"),
    ("cmdline", "how the host was booted"),
    ("bootconfig", "how the host was booted"),
    ("partitions", "the host's disks"),
    ("diskstats", "the host's disks"),
    ("mdstat", "the host's disks"),
    ("locks", "locks of all processes"),
    ("iomem", "physical addresses"),
    ("ioports", "physical addresses"),
    ("interrupts", "timing of the host"),
    ("softirqs", "timing of the host"),
    ("timer_list", "timing of all processes"),
    ("schedstat", "timing of all processes"),
    ("sched_debug", "all processes"),
    ("latency_stats", "all processes"),
    ("modules", "what the host has loaded"),
    ("slabinfo", "the kernel's memory"),
    ("vmallocinfo", "the kernel's memory"),
    ("pagetypeinfo", "the kernel's memory"),
    ("buddyinfo", "the kernel's memory"),
    ("zoneinfo", "the kernel's memory"),
    ("vmstat", "the kernel's memory"),
    ("kpagecount", "physical memory"),
    ("kpageflags", "physical memory"),
    ("kpagecgroup", "physical memory"),
    ("sysrq-trigger", "reboots the host"),
];

/// Directories of `/proc` that are covered by an empty one.
const MASKED_DIRECTORIES: &[&str] = &["acpi", "asound", "bus", "driver", "fs", "irq", "pressure", "scsi"];

/// How many namespaces of each kind a user of a sandbox with `userns` can have. A browser takes a few for each page.
const MAX_NAMESPACES: &str = "256";

/// Where programs look for the number of CPUs, relative to the root.
const CPU_DIRECTORY: &str = "sys/devices/system/cpu";
const CPU_FILES: [&str; 3] = ["online", "possible", "present"];

const LISTENER_FD: i32 = 3;
const READY_FD: i32 = 4;
const MEMORY_FD: i32 = 5;
const CPU_FD: i32 = 6;
const MEMORY_STAT_FD: i32 = 7;
const FORKSERVER_FD: i32 = 8;
/// Above all numbers that are placed.
pub(super) const FREE_FDS: i32 = 32;

/// The descriptors for the guest.
struct Descriptors {
    listener: OwnedFd,
    ready: OwnedFd,
    has_interpreter: bool,
    forkserver: Option<OwnedFd>,
    stats: Vec<OwnedFd>,
}

/// Prepares the sandbox, waits for the order and becomes the guest.
pub(super) fn run(
    order: &PrepareOrder,
    has_boot_clock: bool,
    channel: &Channel,
    guest: &OwnedFd,
    filter: &[Instruction],
) {
    let ready = prepare(order, has_boot_clock, filter);
    let reported = match ready {
        Ok(()) => channel.send(&Progress::Waiting, &[]),
        Err(failure) => return drop(channel.send(&Progress::Failed(failure), &[])),
    };
    // The channel closes if this sandbox is not needed any more.
    let Ok((order, fds)) = reported.and_then(|()| channel.receive::<LaunchOrder>()) else { return };
    let mut fds = fds.into_iter().filter_map(|fd| move_fd_above(fd, FREE_FDS).ok());
    let (Some(listener), Some(ready)) = (fds.next(), fds.next()) else { return };
    let has_forkserver = order.interpreter.is_some_and(|interpreter| interpreter.has_forkserver);
    let forkserver = if has_forkserver { fds.next() } else { None };
    let has_interpreter = order.interpreter.is_some();
    let descriptors = Descriptors { listener, ready, has_interpreter, forkserver, stats: fds.collect() };
    let Err(failure) = become_guest(&order, has_boot_clock, &descriptors, guest);
    let text = serde_json::to_vec(&failure).unwrap_or_default();
    // If the server is gone, nobody reads the error.
    let _ = rustix::io::write(&descriptors.ready, &text);
}

fn prepare(order: &PrepareOrder, has_boot_clock: bool, filter: &[Instruction]) -> Result<(), Failure> {
    become_root_of_the_sandbox()?;
    enter_root(order, has_boot_clock)?;
    set_up_process(&order.host_name)?;
    // Before the capabilities are dropped: without CAP_SYS_ADMIN, the kernel would require no_new_privs, which breaks
    // sudo.
    seccomp::load(filter).step("load the system call filter")?;
    drop_all_but_kept(order.features).step("drop capabilities")
}

fn become_guest(
    order: &LaunchOrder,
    has_boot_clock: bool,
    descriptors: &Descriptors,
    guest: &OwnedFd,
) -> Result<std::convert::Infallible, Failure> {
    if let Some(overrides) = &order.proc_overrides {
        change_overrides(overrides, has_boot_clock)?;
    }
    if let Some(cpus) = &order.cpus {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu as usize));
        sched_setaffinity(None, &set).step("choose the CPUs")?;
    }
    exec_guest(descriptors, guest)
}

fn become_root_of_the_sandbox() -> Result<(), Failure> {
    set_group_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root group")?;
    clear_groups().step("leave the host's groups")?;
    set_user_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root")
}

fn enter_root(order: &PrepareOrder, has_boot_clock: bool) -> Result<(), Failure> {
    // Mounts from another user namespace are locked, but a copy of them can become the root.
    mount_bind_recursive(NEW_ROOT, NEW_ROOT).step("copy the root's mounts")?;
    chdir(NEW_ROOT).step("go to the new root")?;
    let root = openat(rustix::fs::CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step("open the new root")?;
    let proc = mount_proc(&root)?;
    if order.features.userns {
        limit_namespaces()?;
    }
    if let Some(last_pid) = order.last_pid {
        std::fs::write("proc/sys/kernel/ns_last_pid", last_pid.to_string()).step("set the first pid")?;
    }
    mask_proc(&proc)?;
    mount_overrides(order, has_boot_clock, &root)?;
    mount_cgroups(&order.cgroup_views, &root)?;
    pivot_to_current_directory().step("change the root")?;
    unmount(".", UnmountFlags::DETACH).step("detach the old root")?;
    chdir("/").step("go to the root")
}

fn mount_proc(root: &OwnedFd) -> Result<OwnedFd, Failure> {
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = filesystem("proc", "", attributes)?;
    attach(&proc, directory_in(root, "proc")?).step("attach /proc")?;
    Ok(proc)
}

/// Namespaces take memory and time of the host that no cgroup counts.
fn limit_namespaces() -> Result<(), Failure> {
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let setting = format!("proc/sys/user/max_{kind}_namespaces");
        std::fs::write(setting, MAX_NAMESPACES).step("limit the namespaces inside")?;
    }
    Ok(())
}

/// By path, which needs one call where descriptors need six. This is safe: the current directory is the new root, `dev`
/// and `proc` in it are our own mounts, and no other process is in this mount namespace yet.
fn mask_proc(proc: &OwnedFd) -> Result<(), Failure> {
    for (name, _) in MASKED_FILES {
        // The device node of our own /dev, which no template can replace.
        cover(&format!("proc/{name}"), "dev/null").step("mask a file of /proc")?;
    }
    for name in MASKED_DIRECTORIES {
        cover(&format!("proc/{name}"), EMPTY_DIRECTORY).step("mask a directory of /proc")?;
    }
    let settings = clone_tree(proc, c"sys").step("copy /proc/sys")?;
    set_tree_options(&settings, TreeOptions { read_only: true, no_set_uid: true, no_devices: true, id_map: None })
        .step("make /proc/sys read-only")?;
    attach(settings, open_in(proc, "sys").step("open /proc/sys")?).step("attach /proc/sys")
}

fn open_in(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat2(directory, name, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), ResolveFlags::BENEATH)
}

/// Mounts `source` over `target`, if this kernel has it.
fn cover(target: &str, source: &str) -> rustix::io::Result<()> {
    match mount_bind(source, target) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Mounts files with the sandbox's values over those of `/proc` and into `/sys`, which is an empty tmpfs.
fn mount_overrides(order: &PrepareOrder, has_boot_clock: bool, root: &OwnedFd) -> Result<(), Failure> {
    let overrides = &order.proc_overrides;
    let texts = directory_in(root, "sys/isopod").and_then(|_| directory_in(root, "sys/isopod/proc"))?;
    for (name, text) in overrides.files(has_boot_clock) {
        create(&texts, name, text)?;
        cover(&format!("proc/{name}"), &format!("sys/isopod/proc/{name}")).step("attach a figure of /proc")?;
    }
    // Programs identify a boot by the kernel's boot id, and the host's would be the same in all sandboxes.
    let boot_id = match &order.boot_id {
        Some(kept) => format!("{kept}\n"),
        None => std::fs::read_to_string("proc/sys/kernel/random/uuid").step("make a boot id")?,
    };
    create(&texts, "boot_id", &boot_id)?;
    cover("proc/sys/kernel/random/boot_id", "sys/isopod/proc/boot_id").step("attach the boot id")?;
    directory_in(root, "sys/devices")?;
    directory_in(root, "sys/devices/system")?;
    let cpu = directory_in(root, CPU_DIRECTORY)?;
    CPU_FILES.iter().try_for_each(|name| create(&cpu, name, &overrides.cpu_range))
}

/// Shows the sandbox its own cgroups, so that programs find their limits. The files belong to the host's root, and
/// these mounts are read-only.
fn mount_cgroups(views: &[CgroupView], root: &OwnedFd) -> Result<(), Failure> {
    directory_in(root, "sys/fs")?;
    directory_in(root, "sys/fs/cgroup")?;
    for view in views {
        let place = directory_in(root, format!("sys/fs/cgroup/{}", view.name).trim_end_matches('/'))?;
        // If the kernel shows no cgroups in a user namespace, the sandbox works without.
        let Ok(groups) = cgroup_filesystem(view) else { continue };
        attach(groups, place).step("attach a cgroup file system")?;
    }
    Ok(())
}

fn cgroup_filesystem(view: &CgroupView) -> Result<OwnedFd, Failure> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    match &view.controllers {
        Some(controllers) => filesystem("cgroup", controllers, attributes),
        None => filesystem("cgroup2", "", attributes),
    }
}

/// The files mounted over those of `/proc` stay the same. Only their content changes.
fn change_overrides(overrides: &ProcOverrides, has_boot_clock: bool) -> Result<(), Failure> {
    let change = |path: String, text: &str| {
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::empty()).step("open a figure")?;
        File::from(file).write_all(text.as_bytes()).step("change a figure")
    };
    for (name, text) in overrides.files(has_boot_clock) {
        change(format!("/sys/isopod/proc/{name}"), text)?;
    }
    CPU_FILES.iter().try_for_each(|name| change(format!("/{CPU_DIRECTORY}/{name}"), &overrides.cpu_range))
}

fn create(directory: &OwnedFd, name: &str, text: &str) -> Result<(), Failure> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(directory, name, flags, Mode::from_raw_mode(0o644)).step("make a figure")?;
    File::from(file).write_all(text.as_bytes()).step("write a figure")
}

pub(super) fn set_up_process(host_name: &str) -> Result<(), Failure> {
    setsid().step("start a session")?;
    umask(Mode::from_raw_mode(0o022));
    forbid_core_dumps().step("forbid core dumps")?;
    raise_open_files();
    let name = CString::new(host_name).map_err(|_| rustix::io::Errno::INVAL).step("read the host name")?;
    set_host_name(&name).step("set the host name")?;
    new_session_keyring().step("start a keyring")?;
    reset_signals().step("reset signals")
}

/// Raises the limit of open files to the hard limit, because servers and databases need more than the usual 1,024.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If the host refuses, its own limit stays, which is not an error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn exec_guest(descriptors: &Descriptors, guest: &OwnedFd) -> Result<std::convert::Infallible, Failure> {
    // Out of the way of the numbers that are placed.
    let guest = rustix::io::fcntl_dupfd_cloexec(guest, FREE_FDS).step("move the guest's program")?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step("open /dev/null")?;
    for number in 0..=2 {
        place_fd(&null, number).step("place stdio")?;
    }
    let mut arguments = vec!["isopod-guest".to_owned(), "init".to_owned()];
    let mut hand_over = |fd: &OwnedFd, number: i32, flag: &str| {
        arguments.extend([flag.to_owned(), number.to_string()]);
        place_fd(fd.as_fd(), number).step("place a descriptor")
    };
    hand_over(&descriptors.listener, LISTENER_FD, "--listen-fd")?;
    hand_over(&descriptors.ready, READY_FD, "--ready-fd")?;
    if let [memory, cpu, memory_stat] = descriptors.stats.as_slice() {
        hand_over(memory, MEMORY_FD, "--memory-fd")?;
        hand_over(cpu, CPU_FD, "--cpu-fd")?;
        hand_over(memory_stat, MEMORY_STAT_FD, "--memory-stat-fd")?;
    }
    if let Some(forkserver) = &descriptors.forkserver {
        hand_over(forkserver, FORKSERVER_FD, "--mother-fd")?;
    }
    if descriptors.has_interpreter {
        arguments.push("--interpreter".to_owned());
    }
    close_from_on_exec(FORKSERVER_FD + 1).step("close what the guest does not need")?;
    let arguments: Vec<CString> = arguments.into_iter().filter_map(|text| CString::new(text).ok()).collect();
    let path = CString::from(c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    Err(exec_fd(&guest, &arguments, &[path])).step("start the guest")
}
