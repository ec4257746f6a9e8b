//! Files that show programs inside as many CPUs and as much memory as the sandbox has.

use std::fs;
use std::sync::OnceLock;

use isopod_wire::Limits;
use serde::{Deserialize, Serialize};

/// The kernel's own file is right in a sandbox with its own boot clock. A copy would be up to a second old, and `ps` would
/// show garbage for a process that is younger than that.
const UPTIME: &str = "uptime";

/// The content of files under `/proc` and `/sys`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcOverrides {
    /// Files that replace those with the same name in `/proc`.
    pub proc: Vec<(String, String)>,
    /// The CPU range for `/sys/devices/system/cpu/online` and its siblings.
    pub cpu_range: String,
}

impl ProcOverrides {
    /// Creates files that match these limits.
    pub fn for_limits(limits: &Limits) -> Self {
        let cpus = limits.whole_cpus();
        Self {
            proc: vec![
                ("meminfo".to_owned(), meminfo(limits.memory.0)),
                ("cpuinfo".to_owned(), first_cpus(host_cpuinfo(), cpus)),
                ("stat".to_owned(), stat(cpus)),
                ("loadavg".to_owned(), "0.00 0.00 0.00 1/1 1\n".to_owned()),
                (UPTIME.to_owned(), "0.00 0.00\n".to_owned()),
                ("swaps".to_owned(), "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".to_owned()),
            ],
            cpu_range: if cpus == 1 { "0\n".to_owned() } else { format!("0-{}\n", cpus - 1) },
        }
    }

    /// Name and text of each file of `/proc` that is covered.
    pub(super) fn files(&self, has_boot_clock: bool) -> impl Iterator<Item = &(String, String)> {
        self.proc.iter().filter(move |(name, _)| !has_boot_clock || name != UPTIME)
    }
}

/// Read once, because the kernel asks every CPU for its frequency, and the rest does not change.
fn host_cpuinfo() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// The fields that `free`, procps and language runtimes read.
fn meminfo(bytes: u64) -> String {
    let total = bytes / 1024;
    let rows = [
        ("MemTotal", total),
        ("MemFree", total),
        ("MemAvailable", total),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("CommitLimit", total),
        ("Committed_AS", 0),
    ];
    rows.iter().map(|(name, kib)| format!("{:<16}{kib:>8} kB\n", format!("{name}:"))).collect()
}

fn first_cpus(cpuinfo: &str, count: u32) -> String {
    let mut text: String = cpuinfo.split_inclusive("\n\n").take(count as usize).collect();
    if !text.ends_with("\n\n") {
        text.push('\n');
    }
    text
}

fn stat(cpus: u32) -> String {
    let idle = "0 0 0 0 0 0 0 0 0 0";
    let lines: String = (0..cpus).map(|cpu| format!("cpu{cpu} {idle}\n")).collect();
    format!("cpu  {idle}\n{lines}intr 0\nctxt 0\nbtime 0\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n")
}

#[cfg(test)]
mod tests {
    use isopod_wire::Bytes;

    use super::*;

    #[test]
    fn memory_and_cpus_agree_with_the_limits() {
        let limits = Limits { cpu_millis: 1500, memory: Bytes::mib(512), ..Limits::default() };
        let overrides = ProcOverrides::for_limits(&limits);
        let file = |name: &str| &overrides.proc.iter().find(|(file, _)| file == name).unwrap().1;
        assert!(file("meminfo").starts_with("MemTotal:         524288 kB\n"), "{}", file("meminfo"));
        assert_eq!(file("stat").lines().filter(|line| line.starts_with("cpu")).count(), 3);
        assert_eq!(overrides.cpu_range, "0-1\n");
    }

    #[test]
    fn cpuinfo_is_cut_after_whole_processors() {
        let host = "processor: 0\na\n\nprocessor: 1\nb\n\nprocessor: 2\nc\n\n";
        assert_eq!(first_cpus(host, 2), "processor: 0\na\n\nprocessor: 1\nb\n\n");
        assert_eq!(first_cpus(host, 64), host);
    }
}
