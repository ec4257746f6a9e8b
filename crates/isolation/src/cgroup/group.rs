//! The cgroups of one sandbox: limits, freezing, killing, usage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use isopod_wire::Limits;
use isopod_wire::node::Usage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::layout::{Controller, Layout};
use super::{CgroupError, remove_directory};

/// The period of the CPU quota.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// The v1 file for socket memory, which v1 does not count as memory at all unless it is limited. Without a limit, a
/// sandbox could fill the buffers of its own connections with gigabytes, up to the bound that all connections of the
/// host share.
pub(super) const V1_SOCKET_MEMORY: &str = "memory.kmem.tcp.limit_in_bytes";
/// Socket memory is limited to this fraction of the memory limit, because it comes on top of it. Connections that need
/// more become slow, but do not break.
const V1_SOCKET_SHARE: u64 = 4;
/// The time limit for a freeze. A task that waits for a dead file server never freezes.
const FREEZE_DEADLINE: Duration = Duration::from_secs(5);
/// How long the kernel may take to remove killed tasks.
const REMOVE_DEADLINE: Duration = Duration::from_secs(30);
/// How long to keep killing processes that fork faster than they are found.
const KILL_DEADLINE: Duration = Duration::from_secs(2);
const BRIEF_FREEZE_DEADLINE: Duration = Duration::from_millis(20);
const KILL_PAUSE: Duration = Duration::from_micros(500);

/// The cgroups of one sandbox, by controller.
#[derive(Clone, Debug)]
pub struct SandboxCgroup {
    places: BTreeMap<Controller, Place>,
    directories: BTreeSet<PathBuf>,
}

#[derive(Clone, Debug)]
struct Place {
    directory: PathBuf,
    v2: bool,
}

/// Open files with a sandbox's usage, for its guest, which sees no cgroup file system.
#[derive(Debug)]
pub struct StatFiles {
    /// Memory usage in bytes.
    pub memory: File,
    /// The `memory.stat` table.
    pub memory_stat: File,
    /// CPU time in nanoseconds (`cpuacct.usage`), or the v2 `cpu.stat` table.
    pub cpu: File,
}

impl SandboxCgroup {
    pub(super) fn new(layout: &Layout, below: &Path) -> Self {
        let place = |controller| {
            let directory = layout.directory(controller)?.join(below);
            Some((controller, Place { directory, v2: layout.is_v2(controller) }))
        };
        use Controller::{Cpu, CpuAccounting, Freezer, Memory, Pids};
        Self {
            places: [Memory, Cpu, CpuAccounting, Pids, Freezer].into_iter().filter_map(place).collect(),
            directories: layout.hierarchies().into_iter().map(|hierarchy| hierarchy.join(below)).collect(),
        }
    }

    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(PathBuf::as_path)
    }

    /// Opens the files to which a process writes `0` in order to join.
    pub fn entrances(&self) -> Result<Vec<File>, CgroupError> {
        let open = |directory: &PathBuf| {
            let file = directory.join("cgroup.procs");
            OpenOptions::new().write(true).open(&file).map_err(CgroupError::on("open", &file))
        };
        self.directories.iter().map(open).collect()
    }

    /// Moves a process with all its threads into the cgroups.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.directories.iter().try_for_each(|directory| write_pid(directory, pid))
    }

    /// Moves a process that does not belong to the sandbox out again, to the nearest cgroup above all sandboxes that
    /// accepts it.
    pub fn expel(&self, pid: u32) {
        for directory in self.directories.iter().filter(|directory| holds(directory, pid)) {
            let moved = directory.ancestors().skip(2).any(|above| write_pid(above, pid).is_ok());
            if !moved {
                tracing::warn!(pid, directory = %directory.display(), "could not move a foreign process out");
            }
        }
    }

    /// Opens the usage files for the guest.
    pub fn stat_files(&self) -> Result<Option<StatFiles>, CgroupError> {
        let (Some(memory), Some(cpu)) =
            (self.places.get(&Controller::Memory), self.places.get(&Controller::CpuAccounting))
        else {
            return Ok(None);
        };
        let open = |path: PathBuf| File::open(&path).map_err(CgroupError::on("open", &path));
        Ok(Some(StatFiles {
            memory: open(memory.pick("memory.usage_in_bytes", "memory.current"))?,
            memory_stat: open(memory.directory.join("memory.stat"))?,
            cpu: open(cpu.pick("cpuacct.usage", "cpu.stat"))?,
        }))
    }

    /// Sets the sandbox's limits. May be called again on a running one.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), CgroupError> {
        if let Some(memory) = self.places.get(&Controller::Memory) {
            memory.set_memory(limits.memory.0)?;
        }
        if let Some(cpu) = self.places.get(&Controller::Cpu) {
            let quota = u64::from(limits.cpu_millis) * CPU_PERIOD_MICROS / 1000;
            if cpu.v2 {
                cpu.write("cpu.max", &format!("{quota} {CPU_PERIOD_MICROS}"))?;
            } else {
                cpu.write("cpu.cfs_period_us", &CPU_PERIOD_MICROS.to_string())?;
                cpu.write("cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        match self.places.get(&Controller::Pids) {
            Some(pids) => pids.write("pids.max", &limits.pids.to_string()),
            None => Ok(()),
        }
    }

    /// Stops all processes and keeps their memory. Processes that are started into the cgroup stop too.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        let freezer = self.freezer()?;
        freezer.write_freezer(true)?;
        let deadline = Instant::now() + FREEZE_DEADLINE;
        while !freezer.is_frozen()? {
            if Instant::now() > deadline {
                freezer.write_freezer(false)?;
                let late = io::Error::new(io::ErrorKind::TimedOut, "processes did not stop in time");
                return Err(CgroupError::on("freeze", &freezer.directory)(late));
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Resumes all processes.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.freezer()?.write_freezer(false)
    }

    /// Whether the processes are stopped.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        self.freezer()?.is_frozen()
    }

    fn freezer(&self) -> Result<&Place, CgroupError> {
        let none = || io::Error::new(io::ErrorKind::Unsupported, "this host has no freezer");
        self.places.get(&Controller::Freezer).ok_or_else(|| CgroupError::on("use", Path::new("freezer"))(none()))
    }

    /// Returns the current resource usage, without disk usage.
    pub fn usage(&self) -> Result<Usage, CgroupError> {
        let mut usage = Usage::default();
        if let Some(memory) = self.places.get(&Controller::Memory) {
            let used = memory.read_number(&memory.pick_name("memory.usage_in_bytes", "memory.current"))?;
            usage.cache =
                memory.read_field("memory.stat", if memory.v2 { "inactive_file" } else { "total_inactive_file" })?;
            usage.memory = used.saturating_sub(usage.cache);
        }
        if let Some(cpu) = self.places.get(&Controller::CpuAccounting) {
            usage.cpu_micros = match cpu.v2 {
                true => cpu.read_field("cpu.stat", "usage_usec")?,
                false => cpu.read_number("cpuacct.usage")? / 1000,
            };
        }
        if let Some(pids) = self.places.get(&Controller::Pids) {
            usage.pids = pids.read_number("pids.current")?;
        }
        Ok(usage)
    }

    /// How many processes the kernel has killed here because of the memory limit.
    pub fn out_of_memory_kills(&self) -> Result<u64, CgroupError> {
        match self.places.get(&Controller::Memory) {
            Some(memory) => memory.read_field(&memory.pick_name("memory.oom_control", "memory.events"), "oom_kill"),
            None => Ok(0),
        }
    }

    /// How often the kernel has throttled processes here because of the CPU limit.
    pub fn throttled_periods(&self) -> Result<u64, CgroupError> {
        match self.places.get(&Controller::Cpu) {
            Some(cpu) => cpu.read_field("cpu.stat", "nr_throttled"),
            None => Ok(0),
        }
    }

    /// Kills everything inside, including frozen and just forked processes.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let unified = self.places.get(&Controller::Freezer).filter(|place| place.v2);
        if let Some(place) = unified {
            match place.write("cgroup.kill", "1") {
                Err(error) if error.io().kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
        }
        self.kill_one_by_one()
    }

    /// For kernels without `cgroup.kill`: repeats until no new process is found. Killed and frozen processes do not
    /// fork. A task that v1 has frozen dies only when it is thawed.
    fn kill_one_by_one(&self) -> Result<(), CgroupError> {
        let freezer = self.places.get(&Controller::Freezer).filter(|place| place.directory.exists());
        let deadline = Instant::now() + KILL_DEADLINE;
        let mut killed = BTreeMap::new();
        loop {
            if let Some(freezer) = freezer {
                freezer.freeze_for_a_moment()?;
            }
            let found = self.kill_new(&mut killed);
            if let Some(freezer) = freezer {
                freezer.write_freezer(false)?;
            }
            if found == 0 || Instant::now() >= deadline {
                return Ok(());
            }
            thread::sleep(KILL_PAUSE);
        }
    }

    /// Kills the processes that were not killed before. Returns how many there were.
    fn kill_new(&self, killed: &mut BTreeMap<u32, OwnedFd>) -> usize {
        // Forget ended processes, because their pids may be reused.
        killed.retain(|_, pidfd| !has_ended(pidfd));
        let pids: Vec<u32> = self.pids().into_iter().filter(|pid| !killed.contains_key(pid)).collect();
        let kill = |pid: &u32| Some((*pid, self.kill_member(*pid)?));
        killed.extend(pids.iter().filter_map(kill));
        pids.len()
    }

    /// Kills all processes inside except one. Returns how many there were.
    pub fn kill_all_but(&self, spared: u32) -> usize {
        let pids: Vec<u32> = self.pids().into_iter().filter(|pid| *pid != spared).collect();
        pids.iter().for_each(|pid| drop(self.kill_member(*pid)));
        pids.len()
    }

    fn kill_member(&self, pid: u32) -> Option<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        // Checked again after the pidfd is open, because the pid may have been reused before.
        let is_member = self.directories.first().is_some_and(|directory| holds(directory, pid));
        // It may have ended by itself.
        (is_member && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()).then_some(pidfd)
    }

    /// Returns the pids of everything inside, as this process sees them.
    pub fn pids(&self) -> Vec<u32> {
        let Some(directory) = self.directories.iter().next() else { return Vec::new() };
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes the cgroups, after waiting for killed tasks. Missing cgroups are not an error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + REMOVE_DEADLINE;
        for directory in &self.directories {
            loop {
                match remove_directory(directory) {
                    Err(error) if is_busy(&error) && Instant::now() < deadline => {
                        thread::sleep(Duration::from_micros(500));
                    }
                    other => break other?,
                }
            }
        }
        Ok(())
    }
}

fn write_pid(directory: &Path, pid: u32) -> Result<(), CgroupError> {
    let file = directory.join("cgroup.procs");
    // Without creating it, because other file systems are above the cgroups.
    let open = OpenOptions::new().write(true).open(&file).map_err(CgroupError::on("open", &file))?;
    (&open).write_all(pid.to_string().as_bytes()).map_err(CgroupError::on("write", &file))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

fn holds(directory: &Path, pid: u32) -> bool {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().any(|line| line.parse() == Ok(pid))
}

fn is_busy(error: &CgroupError) -> bool {
    error.io().kind() == io::ErrorKind::ResourceBusy
}

impl Place {
    fn pick_name(&self, v1: &str, v2: &str) -> String {
        if self.v2 { v2 } else { v1 }.to_owned()
    }

    fn pick(&self, v1: &str, v2: &str) -> PathBuf {
        self.directory.join(self.pick_name(v1, v2))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), CgroupError> {
        let path = self.directory.join(file);
        fs::write(&path, text).map_err(CgroupError::on("write", &path))
    }

    /// Swap is disabled, because a limit that can be exceeded by swapping is no limit.
    fn set_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        if self.v2 {
            self.write("memory.max", &bytes.to_string())?;
            return self.write_if_there("memory.swap.max", "0");
        }
        // The limit for memory and swap together must never be below the one for memory while either is changed.
        self.write_if_there("memory.memsw.limit_in_bytes", "-1")?;
        self.write("memory.limit_in_bytes", &bytes.to_string())?;
        self.write_if_there(V1_SOCKET_MEMORY, &(bytes / V1_SOCKET_SHARE).to_string())?;
        self.write_if_there("memory.memsw.limit_in_bytes", &bytes.to_string())
    }

    fn write_if_there(&self, file: &str, text: &str) -> Result<(), CgroupError> {
        match self.write(file, text) {
            Err(error) if error.io().kind() == io::ErrorKind::NotFound => Ok(()),
            // A file that this kernel has but does not support, such as disabled swap accounting.
            Err(error) if error.io().kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other,
        }
    }

    fn write_freezer(&self, frozen: bool) -> Result<(), CgroupError> {
        match (self.v2, frozen) {
            (true, true) => self.write("cgroup.freeze", "1"),
            (true, false) => self.write("cgroup.freeze", "0"),
            (false, true) => self.write("freezer.state", "FROZEN"),
            (false, false) => self.write("freezer.state", "THAWED"),
        }
    }

    /// Does not wait for tasks that wait for a disk or a file system, because they may not freeze.
    fn freeze_for_a_moment(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + BRIEF_FREEZE_DEADLINE;
        self.write_freezer(true)?;
        while !self.is_frozen()? && Instant::now() < deadline {
            thread::sleep(KILL_PAUSE);
        }
        Ok(())
    }

    fn is_frozen(&self) -> Result<bool, CgroupError> {
        match self.v2 {
            true => Ok(self.read_field("cgroup.events", "frozen")? == 1),
            false => Ok(self.read("freezer.state")?.trim() == "FROZEN"),
        }
    }

    fn read(&self, file: &str) -> Result<String, CgroupError> {
        let path = self.directory.join(file);
        fs::read_to_string(&path).map_err(CgroupError::on("read", &path))
    }

    fn read_number(&self, file: &str) -> Result<u64, CgroupError> {
        Ok(self.read(file)?.trim().parse().unwrap_or(0))
    }

    /// Returns the number of `field` in a table of `name number` lines, or 0 if the kernel does not have it.
    fn read_field(&self, file: &str, field: &str) -> Result<u64, CgroupError> {
        let text = self.read(file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(' '));
        Ok(value.and_then(|value| value.trim().parse().ok()).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::Cgroups;
    use super::*;
    use crate::alone::alone;
    use crate::sys::cred::become_subreaper;
    use crate::sys::process::{Fork, exit_now, fork, ignore_signals};

    const CHAINS: usize = 16;

    /// A process that waits for a signal, then starts the next one and ends, and so on: its pid is stale before it is
    /// killed.
    fn start_chain(word: impl AsFd) -> u32 {
        let Fork::Parent { pid, .. } = fork().expect("one thread") else {
            let _ = rustix::io::read(word, &mut [0; 1]);
            while let Ok(Fork::Child) = fork() {}
            exit_now(0)
        };
        pid
    }

    #[test]
    fn nothing_that_forks_and_ends_gets_away() {
        alone("cgroup::group::tests::nothing_that_forks_and_ends_gets_away", || {
            // Ended processes are reaped at once and make room for others.
            become_subreaper().and_then(|()| ignore_signals()).expect("children that reap themselves");
            let layout = Layout::detect().expect("a host has cgroups");
            let cgroups = Cgroups::open(layout, &format!("t{:x}", std::process::id())).expect("the test's own groups");
            for round in 0..5 {
                let group = cgroups.create(&format!("storm{round}")).expect("a group");
                group.set_limits(&Limits::default()).expect("limits");
                let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
                let first: Vec<u32> = (0..CHAINS).map(|_| start_chain(&reader)).collect();
                first.iter().for_each(|pid| group.add(*pid).expect("it is moved"));
                rustix::io::write(&writer, &[1; CHAINS]).expect("they are told");
                while group.pids().iter().any(|pid| first.contains(pid)) {
                    thread::yield_now();
                }
                assert!(!group.pids().is_empty(), "the storm is over before it was ended");
                // As on a kernel without `cgroup.kill`.
                group.kill_one_by_one().expect("all are killed");
                group.remove().expect("nobody is left");
            }
            cgroups.remove().expect("the test's own group goes");
        });
    }
    #[test]
    fn a_foreign_process_is_moved_out_and_one_that_is_not_inside_stays_where_it_is() {
        let name = "cgroup::group::tests::a_foreign_process_is_moved_out_and_one_that_is_not_inside_stays_where_it_is";
        alone(name, || {
            let layout = Layout::detect().expect("a host has cgroups");
            let cgroups = Cgroups::open(layout, &format!("t{:x}", std::process::id())).expect("the test's own groups");
            let [group, other] = ["one", "other"].map(|name| cgroups.create(name).expect("a group"));
            let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
            let Fork::Parent { pid, pidfd } = fork().expect("one thread") else {
                drop(writer);
                let _ = rustix::io::read(reader, &mut [0; 1]);
                exit_now(0)
            };
            let places = || fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
            group.add(pid).expect("it is moved");
            other.expel(pid);
            assert!(group.directories().all(|directory| holds(directory, pid)), "{}", places());
            group.expel(pid);
            assert!(!places().contains("isopod-t"), "{}", places());
            assert!(!has_ended(&pidfd), "it goes on elsewhere");
            drop(writer);
            group.remove().and_then(|()| other.remove()).expect("both are empty");
            cgroups.remove().expect("the test's own group goes");
        });
    }
}
