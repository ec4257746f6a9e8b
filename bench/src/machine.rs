//! Facts about the machine, which are necessary to interpret the numbers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A paragraph with date, commit, cores, kernel and load.
pub(crate) fn facts() -> String {
    let now = OffsetDateTime::now_utc().replace_nanosecond(0).ok().and_then(|now| now.format(&Rfc3339).ok());
    format!(
        "- date: {}\n- commit: {}\n- machine: {} × {}, {} MiB of memory, Linux {}\n- load at the start: {}\n",
        now.unwrap_or_default(),
        commit(),
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        cpu_model(),
        meminfo("MemTotal:") >> 20,
        read("/proc/sys/kernel/osrelease"),
        load(),
    )
}

/// The three load averages.
pub(crate) fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Returns a field of `/proc/meminfo` in bytes.
pub(crate) fn meminfo(field: &str) -> u64 {
    let text = read("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// CPU time of the whole machine, in all processes and the kernel.
pub(crate) fn cpu_time() -> Duration {
    let text = read("/proc/stat");
    let fields: Vec<u64> =
        text.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user, nice, system, irq, softirq: all but idle, iowait and what a hypervisor took.
    let ticks: u64 = [0, 1, 2, 5, 6].into_iter().filter_map(|index| fields.get(index)).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success());
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    let hash = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    if dirty { format!("{hash} with changes") } else { hash }
}

fn cpu_model() -> String {
    let text = read("/proc/cpuinfo");
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(": ")).map_or("CPU", |(_, name)| name).to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}
