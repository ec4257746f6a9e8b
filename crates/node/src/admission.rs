//! Refuses a new sandbox if the host is short of a resource, before the running ones suffer.

use std::fs;

use isopod_wire::Bytes;
use rustix::process::{Resource, getrlimit};

use crate::host::Host;

/// What must stay free for the host itself.
const MIN_MEMORY: Bytes = Bytes::mib(256);
const MIN_DISK: Bytes = Bytes::mib(256);
/// Records of sandboxes and the database are on the disk of the state directory.
const MIN_RECORD_SPACE: Bytes = Bytes::mib(16);
/// The descriptors that a server needs for its connections, and to create and remove sandboxes.
const MIN_DESCRIPTORS: u64 = 64;
/// A new sandbox starts a few processes at once.
const MIN_PIDS: u64 = 64;

/// Returns the reason if the host has no room for another sandbox.
///
/// Memory is not reserved, because most sandboxes use a small part of their limit. Only what is free now counts.
pub(crate) fn why_full(host: &Host) -> Option<String> {
    if descriptors_are_low() {
        return Some("too few file descriptors are left; raise the limit (ulimit -n, LimitNOFILE)".to_owned());
    }
    let memory = available_memory();
    if memory < MIN_MEMORY {
        return Some(format!("only {} of memory are free, and the host needs {MIN_MEMORY} itself", whole_mib(memory)));
    }
    let disk = host.disk.free_space().unwrap_or(Bytes(0));
    if disk < MIN_DISK {
        return Some(format!("only {} of disk space are free, and the host needs {MIN_DISK} itself", whole_mib(disk)));
    }
    let records = host.disk.host_free_space().unwrap_or(Bytes(0));
    if records < MIN_RECORD_SPACE {
        return Some(format!("only {} are free on the disk of the state directory", whole_mib(records)));
    }
    let pids = free_pids()?;
    (pids < MIN_PIDS).then(|| format!("only {pids} process ids are free, and the host needs {MIN_PIDS} itself"))
}

/// Whether this process is about to run out of file descriptors. Without any, it could not even remove a sandbox.
pub(crate) fn descriptors_are_low() -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    open_descriptors().is_some_and(|open| limit.saturating_sub(open) < (limit / 8).clamp(MIN_DESCRIPTORS, 1024))
}

/// Returns `None` if the number is unknown.
fn open_descriptors() -> Option<u64> {
    // Since Linux 6.2, the directory's size is the number of descriptors. Reading it needs no descriptor.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64),
        count => Some(count),
    }
}

fn whole_mib(bytes: Bytes) -> Bytes {
    Bytes::mib(bytes.as_mib())
}

/// The memory that the kernel can provide without swapping.
pub(crate) fn available_memory() -> Bytes {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Bytes(kib.unwrap_or(0) * 1024)
}

/// Returns `None` if the host does not report it.
fn free_pids() -> Option<u64> {
    let limit: u64 = fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
    // The fourth field of loadavg is running/all threads.
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let used: u64 = load.split(' ').nth(3)?.split_once('/')?.1.parse().ok()?;
    Some(limit.saturating_sub(used))
}
