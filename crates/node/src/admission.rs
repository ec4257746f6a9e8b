//! Refuses a sandbox that the host cannot hold, before it hurts those that run.

use std::fs;

use isopod_wire::Bytes;

use crate::host::Host;

/// What must stay free for the host itself.
const LEAST_MEMORY: Bytes = Bytes::mib(256);
const LEAST_DISK: Bytes = Bytes::mib(256);
/// A new sandbox needs a few processes at once.
const LEAST_PIDS: u64 = 64;

/// Says why there is no room, or nothing when there is.
///
/// Memory is not reserved: most sandboxes use a small part of what they may. What is looked at is what is left now.
pub(crate) fn why_full(host: &Host) -> Option<String> {
    let memory = available_memory();
    if memory < LEAST_MEMORY {
        return Some(format!("{} of memory are left, {LEAST_MEMORY} must stay free", whole_mib(memory)));
    }
    let disk = host.disk.free_space().unwrap_or(Bytes(0));
    if disk < LEAST_DISK {
        return Some(format!("{} of disk are left, {LEAST_DISK} must stay free", whole_mib(disk)));
    }
    let pids = free_pids()?;
    (pids < LEAST_PIDS).then(|| format!("{pids} process ids are left, {LEAST_PIDS} must stay free"))
}

fn whole_mib(bytes: Bytes) -> Bytes {
    Bytes::mib(bytes.as_mib())
}

/// What the kernel could give without swapping.
pub(crate) fn available_memory() -> Bytes {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Bytes(kib.unwrap_or(0) * 1024)
}

/// `None` when the host does not say.
fn free_pids() -> Option<u64> {
    let most: u64 = fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
    // The fourth field of loadavg is running/all threads.
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let used: u64 = load.split(' ').nth(3)?.split_once('/')?.1.parse().ok()?;
    Some(most.saturating_sub(used))
}
