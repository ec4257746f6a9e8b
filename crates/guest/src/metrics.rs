//! `GET /metrics`: current resource usage, from the cgroup files that the host passed in and from `/proc`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::users::read_small;

/// The open cgroup files; each is optional.
#[derive(Debug)]
pub(crate) struct Meters {
    /// `memory.current` or `memory.usage_in_bytes`.
    memory: Option<OwnedFd>,
    /// `memory.stat`.
    memory_stat: Option<OwnedFd>,
    /// `cpu.stat` or `cpuacct.usage`.
    cpu: Option<OwnedFd>,
    /// When the CPU time was last read, and its value then: usage is computed between two reads.
    last_cpu: Mutex<(Instant, u64)>,
}

/// The JSON that clients expect.
#[derive(Debug, Serialize)]
pub(crate) struct Metrics {
    ts: u64,
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

impl Meters {
    pub(crate) fn new(memory: Option<OwnedFd>, memory_stat: Option<OwnedFd>, cpu: Option<OwnedFd>) -> Self {
        let used = cpu.as_ref().and_then(|fd| parse_cpu_nanos(&read_at_start(fd.as_fd()))).unwrap_or(0);
        Self { memory, memory_stat, cpu, last_cpu: Mutex::new((Instant::now(), used)) }
    }

    pub(crate) fn read(&self) -> Metrics {
        let meminfo = read_small(Path::new("/proc/meminfo"));
        let kib = |key| meminfo_kib(&meminfo, key).unwrap_or(0) * 1024;
        let mem_total = kib("MemTotal");
        let stat = self.memory_stat.as_ref().map(|fd| read_at_start(fd.as_fd()));
        let mem_cache = stat.as_deref().and_then(parse_cache).unwrap_or_else(|| kib("Cached"));
        let charged = self.memory.as_ref().and_then(|fd| read_at_start(fd.as_fd()).trim().parse::<u64>().ok());
        let mem_used = match charged {
            // The kernel counts the page cache as used. Clients want to know what cannot be reclaimed.
            Some(charged) => charged.saturating_sub(mem_cache),
            None => mem_total.saturating_sub(kib("MemAvailable")),
        };
        let (disk_used, disk_total) = disk();
        let cpu_count = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Metrics {
            ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            cpu_count,
            cpu_used_pct: self.cpu_used_pct(cpu_count),
            mem_total,
            mem_used,
            mem_cache,
            mem_total_mib: mem_total >> 20,
            mem_used_mib: mem_used >> 20,
            disk_used,
            disk_total,
        }
    }

    /// How many bytes are charged to the sandbox, and how many of them are page cache.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        let charged = read_at_start(self.memory.as_ref()?.as_fd()).trim().parse().ok()?;
        let cache = self.memory_stat.as_ref().and_then(|fd| parse_cache(&read_at_start(fd.as_fd()))).unwrap_or(0);
        Some((charged, cache.min(charged)))
    }

    /// CPU time of the sandbox in nanoseconds.
    pub(crate) fn cpu_nanos(&self) -> Option<u64> {
        parse_cpu_nanos(&read_at_start(self.cpu.as_ref()?.as_fd()))
    }

    /// CPU usage since the last call, in percent of all the sandbox's CPUs, with two decimals.
    fn cpu_used_pct(&self, cpus: u64) -> f64 {
        let Some(nanos) = self.cpu_nanos() else { return 0.0 };
        let now = Instant::now();
        let mut last = self.last_cpu.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *last, (now, nanos));
        let wall = now.duration_since(since).as_nanos().max(1) as f64 * cpus as f64;
        let share = nanos.saturating_sub(before) as f64 * 100.0 / wall;
        (share.min(100.0) * 100.0).round() / 100.0
    }
}

/// Reads the file from its start without moving the descriptor's position.
fn read_at_start(fd: BorrowedFd<'_>) -> String {
    let mut buffer = [0; 4096];
    match rustix::io::pread(fd, &mut buffer, 0) {
        Ok(n) => String::from_utf8_lossy(&buffer[..n]).into_owned(),
        Err(_) => String::new(),
    }
}

/// Nanoseconds from `cpuacct.usage` (a number) or `cpu.stat` (a line `usage_usec N`).
fn parse_cpu_nanos(text: &str) -> Option<u64> {
    if let Ok(nanos) = text.trim().parse() {
        return Some(nanos);
    }
    let micros: u64 = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    micros.checked_mul(1000)
}

/// The reclaimable page cache: `inactive_file` plus `active_file`, preferring the totals of cgroup v1.
fn parse_cache(text: &str) -> Option<u64> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    let pair = |a: &str, b: &str| Some(value(a)? + value(b)?);
    pair("total_inactive_file", "total_active_file").or_else(|| pair("inactive_file", "active_file"))
}

fn meminfo_kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

fn disk() -> (u64, u64) {
    let Ok(stat) = rustix::fs::statvfs("/") else { return (0, 0) };
    let total = stat.f_blocks.saturating_mul(stat.f_frsize);
    (total.saturating_sub(stat.f_bfree.saturating_mul(stat.f_frsize)), total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_cgroup_are_understood() {
        assert_eq!(parse_cpu_nanos("1234\n"), Some(1234));
        assert_eq!(parse_cpu_nanos("usage_usec 5\nuser_usec 3\n"), Some(5000));
        assert_eq!(parse_cpu_nanos("nonsense"), None);
        assert_eq!(parse_cache("anon 1\ninactive_file 2\nactive_file 3\n"), Some(5));
        assert_eq!(
            parse_cache("inactive_file 2\nactive_file 3\ntotal_inactive_file 20\ntotal_active_file 30\n"),
            Some(50)
        );
        assert_eq!(parse_cache(""), None);
        assert_eq!(meminfo_kib("MemTotal:       100 kB\nMemFree: 7 kB\n", "MemFree"), Some(7));
    }

    #[test]
    fn without_cgroup_files_there_are_still_metrics() {
        let metrics = Meters::new(None, None, None).read();
        assert!(metrics.mem_total > 0 && metrics.disk_total > 0 && metrics.cpu_count > 0);
    }
}
