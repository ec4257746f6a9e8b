//! Resource limits by cgroups, on hosts with v1, v2 or both.
//!
//! Each controller is used where the host has it. Everything made lies in one group per hierarchy whose name carries
//! the tag of the state directory, so that a sweep can tell what is its own. All hierarchies are joined, also those
//! without a limit: a manager that ends a service kills what it finds in its group.

mod group;
mod layout;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use group::{SandboxCgroup, StatFiles};
pub use layout::{CgroupView, Controller, Layout, LayoutError};

/// Why a group could not be made, changed or removed.
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

/// The groups of one state directory.
#[derive(Clone, Debug)]
pub struct Cgroups {
    layout: Layout,
    name: String,
}

/// The share of the host's process ids that all sandboxes together may take.
const PID_SHARE_PERCENT: u64 = 75;
/// The unit of the kernel's bounds on socket memory; the only page size of this architecture.
const PAGE: u64 = 4096;

impl Cgroups {
    /// Makes the group that holds all sandboxes of the state directory with this tag.
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

    /// On v2 a group's children have only the controllers that it names.
    fn hand_controllers_down(&self) -> Result<(), CgroupError> {
        let Some((root, controllers)) = self.layout.v2_controllers() else { return Ok(()) };
        let words: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
        for directory in [root.to_owned(), root.join(&self.name)] {
            let file = directory.join("cgroup.subtree_control");
            fs::write(&file, words.join(" ")).map_err(CgroupError::on("write", &file))?;
        }
        Ok(())
    }

    /// On v1 a group without CPUs and memory nodes takes nobody in. The groups of sandboxes begin with those of this one.
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

    /// On v1, half of what the host lets all connections together have. It also keeps the kernel's accounting switched
    /// on, which costs a quarter of a millisecond each time the first group asks for it.
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

    /// What a sandbox sees of its own groups.
    pub fn views(&self) -> Vec<CgroupView> {
        self.layout.views()
    }

    /// Makes the groups of one sandbox, without limits yet.
    pub fn create(&self, name: &str) -> Result<SandboxCgroup, CgroupError> {
        let group = self.group(name);
        for directory in group.directories() {
            if let Err(error) = fs::create_dir(directory) {
                let error = CgroupError::on("make", directory)(error);
                // What was made before the failing one must not stay.
                let _ = group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    /// The groups of a sandbox that were made earlier.
    pub fn group(&self, name: &str) -> SandboxCgroup {
        SandboxCgroup::new(&self.layout, &Path::new(&self.name).join(name))
    }

    /// Names of all sandboxes that have a group in any hierarchy.
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

    /// Removes the group that held all sandboxes. It must be empty.
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
