//! Makes programs see the sandbox's own memory, CPU, uptime and load in `/proc`.
//!
//! The host mounts files of its own over those in `/proc`, except over `/proc/uptime` in a sandbox with a boot clock of its
//! own, where the kernel tells it right. The guest rewrites them once a second while a process or a cell
//! of a client runs, and leaves them alone while the sandbox is idle. Outside a sandbox these files do not exist, and the
//! guest does nothing.

use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::Meters;

/// The directory of the files that are mounted over those in `/proc`.
const DIRECTORY: &str = "/sys/isopod/proc";
const INTERVAL: Duration = Duration::from_secs(1);
/// The time unit of `/proc/stat` on every architecture.
const NANOS_PER_TICK: u64 = 10_000_000;
/// The averaging windows of the three numbers in `/proc/loadavg`.
const LOAD_WINDOWS_SECONDS: [f64; 3] = [60.0, 300.0, 900.0];

/// The files over `/proc`, and whether a task refreshes them.
#[derive(Debug)]
pub(crate) struct ProcOverrides {
    started: Instant,
    meters: Arc<Meters>,
    state: Mutex<State>,
}

/// A process or cell of a client that runs. The files are refreshed while at least one of these exists.
#[derive(Debug)]
pub(crate) struct Activity(Arc<ProcOverrides>);

#[derive(Debug, Default)]
struct State {
    /// The number of activities.
    active: usize,
    /// Whether a task refreshes the files now.
    refreshing: bool,
    /// Opened for the first activity, before any program of a client can change them. `Some(None)`: there are none.
    files: Option<Option<Files>>,
    load: Load,
}

impl ProcOverrides {
    pub(crate) fn new(meters: Arc<Meters>) -> Self {
        Self { started: Instant::now(), meters, state: Mutex::default() }
    }

    /// Refreshes the files now, and once a second until the last activity has ended.
    pub(crate) fn begin(self: &Arc<Self>) -> Activity {
        if self.add_activity() {
            self.refresh();
            tokio::spawn(keep_fresh(Arc::clone(self)));
        }
        Activity(Arc::clone(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an activity. Returns true if there are files and no task refreshes them yet: the caller then starts one.
    fn add_activity(&self) -> bool {
        let mut state = self.state();
        state.active += 1;
        if state.refreshing || state.files.get_or_insert_with(Files::open).is_none() {
            return false;
        }
        state.refreshing = true;
        true
    }

    fn refresh(&self) {
        let mut state = self.state();
        let State { files: Some(Some(files)), load, active, .. } = &mut *state else { return };
        let uptime = if files.uptime.is_some() { self.started.elapsed() } else { boot_clock() };
        let now = Reading { uptime, cpu_nanos: self.meters.cpu_nanos().unwrap_or(0) };
        if let Some((charged, cache)) = self.meters.memory() {
            files.memory.write(&memory(files.memory_kib, charged / 1024, cache / 1024));
        }
        files.stat.write(&stat(&now, files.cpus));
        if let Some(file) = &mut files.uptime {
            file.write(&uptime_text(&now, files.cpus));
        }
        load.add(&now);
        files.load.write(&load.text(*active));
    }

    /// Returns false if nothing runs; the task then ends.
    fn is_active(&self) -> bool {
        let mut state = self.state();
        state.refreshing = state.active > 0;
        state.refreshing
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.0.state().active -= 1;
    }
}

async fn keep_fresh(overrides: Arc<ProcOverrides>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        overrides.refresh();
        if !overrides.is_active() {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    uptime: Duration,
    cpu_nanos: u64,
}

impl Reading {
    /// How many nanoseconds the CPUs were idle, summed over all of them.
    fn idle_nanos(&self, cpus: u64) -> u64 {
        let all = u64::try_from(self.uptime.as_nanos()).unwrap_or(u64::MAX).saturating_mul(cpus);
        all.saturating_sub(self.cpu_nanos)
    }
}

fn memory(total: u64, charged: u64, cache: u64) -> String {
    let free = total.saturating_sub(charged);
    let rows = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free.saturating_add(cache).min(total)),
        ("Buffers", 0),
        ("Cached", cache),
        ("SwapCached", 0),
        ("Active", charged.saturating_sub(cache)),
        ("Inactive", cache),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", charged.saturating_sub(cache)),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("CommitLimit", total),
        ("Committed_AS", charged),
    ];
    let mut text = String::with_capacity(rows.len() * 32);
    for (name, kib) in rows {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{:<16}{kib:>8} kB", format!("{name}:"));
    }
    text
}

fn stat(now: &Reading, cpus: u64) -> String {
    let (used, idle) = (now.cpu_nanos / NANOS_PER_TICK, now.idle_nanos(cpus) / NANOS_PER_TICK);
    let mut text = format!("cpu  {used} 0 0 {idle} 0 0 0 0 0 0\n");
    for cpu in 0..cpus {
        let _ = writeln!(text, "cpu{cpu} {} 0 0 {} 0 0 0 0 0 0", used / cpus, idle / cpus);
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started = since_epoch.saturating_sub(now.uptime).as_secs();
    let _ = write!(text, "intr 0\nctxt 0\nbtime {started}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n");
    text
}

/// The clock by which the kernel tells when a process was started.
fn boot_clock() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn uptime_text(now: &Reading, cpus: u64) -> String {
    let idle = Duration::from_nanos(now.idle_nanos(cpus));
    format!("{:.2} {:.2}\n", now.uptime.as_secs_f64(), idle.as_secs_f64())
}

/// The average number of busy CPUs. The sandbox cannot see how many tasks wait for one.
#[derive(Debug, Default)]
struct Load {
    last: Reading,
    averages: [f64; 3],
}

impl Load {
    fn add(&mut self, now: &Reading) {
        let seconds = now.uptime.saturating_sub(self.last.uptime).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let busy = now.cpu_nanos.saturating_sub(self.last.cpu_nanos) as f64 / 1e9 / seconds;
        for (average, span) in self.averages.iter_mut().zip(LOAD_WINDOWS_SECONDS) {
            let refreshing = (-seconds / span).exp();
            *average = *average * refreshing + busy * (1.0 - refreshing);
        }
        self.last = *now;
    }

    fn text(&self, processes: usize) -> String {
        let [one, five, fifteen] = self.averages;
        format!("{one:.2} {five:.2} {fifteen:.2} 1/{} 1\n", processes + 1)
    }
}

/// The open files, and the values in them that never change.
#[derive(Debug)]
struct Files {
    memory: OverrideFile,
    stat: OverrideFile,
    /// Only in a sandbox that has the host's boot clock.
    uptime: Option<OverrideFile>,
    load: OverrideFile,
    memory_kib: u64,
    cpus: u64,
}

impl Files {
    fn open() -> Option<Self> {
        let (memory, meminfo) = OverrideFile::open("meminfo")?;
        let (stat, cpu_lines) = OverrideFile::open("stat")?;
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let cpus = cpu_lines.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
        Some(Self {
            memory,
            stat,
            uptime: OverrideFile::open("uptime").map(|(file, _)| file),
            load: OverrideFile::open("loadavg")?.0,
            memory_kib: total.trim().trim_end_matches("kB").trim().parse().ok()?,
            cpus: cpus.max(1) as u64,
        })
    }
}

#[derive(Debug)]
struct OverrideFile {
    file: OwnedFd,
    length: u64,
}

impl OverrideFile {
    /// Opens the file; also returns its contents.
    fn open(name: &str) -> Option<(Self, String)> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(format!("{DIRECTORY}/{name}"), flags, Mode::empty()).ok()?;
        let found = rustix::fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return None;
        }
        let mut buffer = vec![0; 16 << 10];
        let read = rustix::io::pread(&file, &mut buffer, 0).ok()?;
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        Some((Self { file, length: read as u64 }, text))
    }

    /// Writes in place, so that a program that reads at this moment gets either the old or the new text. If other files fill
    /// the tmpfs, the old text stays.
    fn write(&mut self, text: &str) {
        let length = text.len() as u64;
        if rustix::io::pwrite(&self.file, text.as_bytes(), 0) == Ok(text.len()) && length < self.length {
            let _ = rustix::fs::ftruncate(&self.file, length);
        }
        self.length = length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sandbox_is_active_until_the_last_activity_ends() {
        let overrides = Arc::new(ProcOverrides::new(Arc::new(Meters::new(None, None, None))));
        let (first, second) = (overrides.begin(), overrides.begin());
        drop(first);
        assert!(overrides.is_active());
        drop(second);
        assert!(!overrides.is_active());
    }

    #[test]
    fn memory_that_could_be_dropped_counts_as_available() {
        let text = memory(1000, 600, 200);
        for row in ["MemTotal:           1000 kB", "MemFree:             400 kB", "MemAvailable:        600 kB"] {
            assert!(text.contains(row), "{row} is not in\n{text}");
        }
        assert!(memory(100, 5000, 0).contains("MemFree:               0 kB"));
    }

    #[test]
    fn cpu_time_and_idle_time_add_up() {
        let now = Reading { uptime: Duration::from_secs(10), cpu_nanos: 5_000_000_000 };
        assert!(stat(&now, 2).starts_with("cpu  500 0 0 1500 0 0 0 0 0 0\ncpu0 250 0 0 750 "));
        assert_eq!(uptime_text(&now, 2), "10.00 15.00\n");
    }

    #[test]
    fn the_load_rises_while_a_cpu_is_busy_and_falls_afterwards() {
        let mut load = Load::default();
        load.add(&Reading { uptime: Duration::from_secs(600), cpu_nanos: 600_000_000_000 });
        assert_eq!(load.text(0), "1.00 0.86 0.49 1/1 1\n");
        load.add(&Reading { uptime: Duration::from_secs(900), cpu_nanos: 600_000_000_000 });
        assert_eq!(load.text(2), "0.01 0.32 0.35 1/3 1\n");
    }
}
