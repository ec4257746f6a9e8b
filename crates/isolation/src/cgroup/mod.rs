//! Resource limits with cgroups, on hosts with v1, v2 or both.
//!
//! Each controller is used where the host has it. Everything is created in one cgroup per hierarchy, whose name
//! contains the tag of the state directory, so that a sweep recognizes its own. A sandbox joins all hierarchies, also
//! those without a limit, because a service manager kills what it finds in a service's cgroup.

mod group;
mod layout;
mod stopped;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use group::{SandboxCgroup, StatFiles};
pub use layout::{CgroupView, Controller, Layout, LayoutError};
pub use stopped::{NoteStopped, StopError, StoppedProcesses};

/// Why a cgroup could not be created, changed or removed.
#[derive(Debug, thiserror::Error)]
#[error("could not {what} {path}")]
pub struct CgroupError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl CgroupError {
    fn on(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { what, path: path.to_owned(), source }
    }

    /// The error of the system call.
    pub fn io(&self) -> &io::Error {
        &self.source
    }
}

/// The cgroups of one state directory.
#[derive(Clone, Debug)]
pub struct Cgroups {
    layout: Layout,
    name: String,
}

/// The share of the host's pids that all sandboxes together may use.
const PID_SHARE_PERCENT: u64 = 75;
/// The unit of the kernel's limits for socket memory. The only page size of this architecture.
const PAGE: u64 = 4096;

impl Cgroups {
    /// Creates the cgroup for all sandboxes of the state directory with this tag.
    pub fn open(layout: Layout, tag: &str) -> Result<Self, CgroupError> {
        let cgroups = Self { layout, name: format!("isopod-{tag}") };
        for hierarchy in cgroups.layout.hierarchies() {
            let directory = hierarchy.join(&cgroups.name);
            ensure_directory(&directory)?;
        }
        cgroups.hand_controllers_down()?;
        cgroups.hand_cpus_down()?;
        cgroups.limit_all_pids()?;
        cgroups.limit_all_sockets();
        Ok(cgroups)
    }

    /// On v2, the children of a cgroup have only the controllers that it delegates.
    fn hand_controllers_down(&self) -> Result<(), CgroupError> {
        let Some((root, controllers)) = self.layout.v2_controllers() else { return Ok(()) };
        let words: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
        for directory in [root.to_owned(), root.join(&self.name)] {
            let file = directory.join("cgroup.subtree_control");
            fs::write(&file, words.join(" ")).map_err(CgroupError::on("write", &file))?;
        }
        Ok(())
    }

    /// On v1, a cgroup without CPUs and memory nodes accepts no process. The cgroups of sandboxes inherit those of this
    /// one.
    fn hand_cpus_down(&self) -> Result<(), CgroupError> {
        let Some(root) = self.layout.v1_directory(Controller::CpuSet) else { return Ok(()) };
        let own = root.join(&self.name);
        for name in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (root.join(name), own.join(name));
            let all = fs::read_to_string(&from).map_err(CgroupError::on("read", &from))?;
            fs::write(&to, all.trim()).map_err(CgroupError::on("write", &to))?;
        }
        let inherit = own.join("cgroup.clone_children");
        fs::write(&inherit, "1").map_err(CgroupError::on("write", &inherit))
    }

    fn limit_all_pids(&self) -> Result<(), CgroupError> {
        let Some(directory) = self.layout.directory(Controller::Pids) else { return Ok(()) };
        let most: u64 = fs::read_to_string("/proc/sys/kernel/pid_max")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(32768);
        let file = directory.join(&self.name).join("pids.max");
        fs::write(&file, (most * PID_SHARE_PERCENT / 100).to_string()).map_err(CgroupError::on("write", &file))
    }

    /// On v1, limits all sandboxes to half of the host's socket memory. It also keeps the kernel's accounting enabled,
    /// because enabling it takes a quarter of a millisecond each time.
    fn limit_all_sockets(&self) {
        let Some(directory) = self.layout.directory(Controller::Memory) else { return };
        let bounds = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap_or_default();
        let Some(most_pages) = bounds.split_whitespace().last().and_then(|word| word.parse::<u64>().ok()) else {
            return;
        };
        let half = (most_pages / 2).saturating_mul(PAGE);
        // A kernel without the file counts sockets as memory (v2), or not at all.
        let _ = fs::write(directory.join(&self.name).join(group::V1_SOCKET_MEMORY), half.to_string());
    }

    /// The hierarchies in which a sandbox sees its own cgroups.
    pub fn views(&self) -> Vec<CgroupView> {
        self.layout.views()
    }

    /// Creates the cgroups of one sandbox, without limits.
    pub fn create(&self, name: &str) -> Result<SandboxCgroup, CgroupError> {
        let group = self.group(name);
        for directory in group.directories() {
            if let Err(error) = fs::create_dir(directory) {
                let error = CgroupError::on("make", directory)(error);
                // Remove what was created before the failure.
                let _ = group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    /// Returns the existing cgroups of a sandbox.
    pub fn group(&self, name: &str) -> SandboxCgroup {
        SandboxCgroup::new(&self.layout, &Path::new(&self.name).join(name))
    }

    /// Lists all sandboxes that have a cgroup in any hierarchy.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for hierarchy in self.layout.hierarchies() {
            for entry in fs::read_dir(hierarchy.join(&self.name))? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Removes the cgroup for all sandboxes. It must be empty.
    pub fn remove(&self) -> Result<(), CgroupError> {
        for hierarchy in self.layout.hierarchies() {
            remove_directory(&hierarchy.join(&self.name))?;
        }
        Ok(())
    }
}

fn ensure_directory(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(CgroupError::on("make", directory)(error)),
        _ => Ok(()),
    }
}

fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CgroupError::on("remove", directory)(error)),
        _ => Ok(()),
    }
}
