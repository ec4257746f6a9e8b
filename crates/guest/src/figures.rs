//! Keeps the figures that programs read in `/proc` (memory, CPU, uptime, load) those of the sandbox.
//!
//! Whoever made the sandbox put files over the real ones in `/proc`; here they are rewritten once a second for as long as
//! a process or code runs that a client started, and not at all while the sandbox is idle. Outside of a sandbox there are no such
//! files, and nothing is done.

use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Mode, OFlags};

use crate::guest::Guest;
use crate::metrics::Meters;

/// Where the files are that stand over those of `/proc`.
const DIRECTORY: &str = "/sys/isopod/proc";
const INTERVAL: Duration = Duration::from_secs(1);
/// The unit of time in `/proc/stat`, on every architecture.
const NANOS_PER_TICK: u64 = 10_000_000;
/// Over how many seconds the three figures of `/proc/loadavg` look back.
const LOAD_SPANS: [f64; 3] = [60.0, 300.0, 900.0];

/// The figures and whether somebody keeps them fresh.
#[derive(Debug)]
pub(crate) struct Figures {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a task refreshes them now.
    kept: bool,
    /// Opened at the first process, when nobody can have changed them. `Some(None)`: there are none.
    files: Option<Option<Files>>,
    load: Load,
}

/// Refreshes the figures now and once a second until no process is left.
pub(crate) fn keep_fresh(guest: &Arc<Guest>) {
    if !guest.figures.begin(&guest.meters) {
        return;
    }
    let guest = Arc::clone(guest);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let live = guest.busy();
            guest.figures.refresh(&guest.meters, live);
            if live == 0 {
                guest.figures.state().kept = false;
                return;
            }
        }
    });
}

impl Default for Figures {
    fn default() -> Self {
        Self { started: Instant::now(), state: Mutex::default() }
    }
}

impl Figures {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when the caller is the one to keep them fresh.
    fn begin(&self, meters: &Meters) -> bool {
        let mut state = self.state();
        if state.kept || state.files.get_or_insert_with(Files::open).is_none() {
            return false;
        }
        state.kept = true;
        drop(state);
        self.refresh(meters, 1);
        true
    }

    fn refresh(&self, meters: &Meters, processes: usize) {
        let mut state = self.state();
        let State { files: Some(Some(files)), load, .. } = &mut *state else { return };
        let now = Reading { uptime: self.started.elapsed(), cpu_nanos: meters.cpu_nanos().unwrap_or(0) };
        if let Some((charged, cache)) = meters.memory() {
            files.memory.write(&memory(files.memory_kib, charged / 1024, cache / 1024));
        }
        files.stat.write(&stat(&now, files.cpus));
        files.uptime.write(&uptime(&now, files.cpus));
        load.add(&now);
        files.load.write(&load.text(processes));
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    uptime: Duration,
    cpu_nanos: u64,
}

impl Reading {
    /// Nanoseconds that the CPUs had nothing to do.
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
        // A String takes everything.
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

fn uptime(now: &Reading, cpus: u64) -> String {
    let idle = Duration::from_nanos(now.idle_nanos(cpus));
    format!("{:.2} {:.2}\n", now.uptime.as_secs_f64(), idle.as_secs_f64())
}

/// How many CPUs were busy lately: the sandbox cannot see how many tasks wait for one.
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
        for (average, span) in self.averages.iter_mut().zip(LOAD_SPANS) {
            let kept = (-seconds / span).exp();
            *average = *average * kept + busy * (1.0 - kept);
        }
        self.last = *now;
    }

    fn text(&self, processes: usize) -> String {
        let [one, five, fifteen] = self.averages;
        format!("{one:.2} {five:.2} {fifteen:.2} 1/{} 1\n", processes + 1)
    }
}

/// The files, and what does not change in them.
#[derive(Debug)]
struct Files {
    memory: Figure,
    stat: Figure,
    uptime: Figure,
    load: Figure,
    memory_kib: u64,
    cpus: u64,
}

impl Files {
    fn open() -> Option<Self> {
        let (memory, meminfo) = Figure::open("meminfo")?;
        let (stat, cpu_lines) = Figure::open("stat")?;
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let cpus = cpu_lines.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
        Some(Self {
            memory,
            stat,
            uptime: Figure::open("uptime")?.0,
            load: Figure::open("loadavg")?.0,
            memory_kib: total.trim().trim_end_matches("kB").trim().parse().ok()?,
            cpus: cpus.max(1) as u64,
        })
    }
}

#[derive(Debug)]
struct Figure {
    file: OwnedFd,
    length: u64,
}

impl Figure {
    /// The file and what is in it.
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

    /// In place, so that who reads at this moment gets the old figures or the new ones. Its tmpfs may be full of
    /// somebody's files; then the old ones stay.
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
        assert_eq!(uptime(&now, 2), "10.00 15.00\n");
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
