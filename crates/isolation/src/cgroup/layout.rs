//! Finds the cgroup controllers of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A controller that a sandbox's limits need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Controller {
    /// Memory limit, OOM kills.
    Memory,
    /// CPU quota.
    Cpu,
    /// CPU time used (part of `Cpu` on v2).
    CpuAccounting,
    /// CPUs and memory nodes. No limit uses it, but on v1, Java ignores all other limits without it.
    CpuSet,
    /// Number of processes.
    Pids,
    /// Freezing on v1.
    Freezer,
}

impl Controller {
    const ALL: [Self; 6] = [Self::Memory, Self::Cpu, Self::CpuAccounting, Self::CpuSet, Self::Pids, Self::Freezer];

    fn v1_name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuAccounting => "cpuacct",
            Self::CpuSet => "cpuset",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
        }
    }

    /// On v2, CPU time and freezing belong to every cgroup, and programs find their limits without a cpuset.
    fn v2_name(self) -> Option<&'static str> {
        match self {
            Self::Memory => Some("memory"),
            Self::Cpu => Some("cpu"),
            Self::Pids => Some("pids"),
            Self::CpuAccounting | Self::CpuSet | Self::Freezer => None,
        }
    }
}

/// The cgroup hierarchies of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    v1: BTreeMap<Controller, PathBuf>,
    /// Named v1 hierarchies without controllers, such as systemd's own.
    named: BTreeSet<PathBuf>,
    v2: Option<PathBuf>,
    v2_has: BTreeSet<Controller>,
    /// The controllers of each v1 hierarchy above, in the format of `mount`.
    v1_options: BTreeMap<PathBuf, String>,
}

/// A hierarchy in which a sandbox sees its own cgroups, read-only, at `/sys/fs/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupView {
    /// The directory below `/sys/fs/cgroup`. Empty if there is only the unified hierarchy.
    pub name: String,
    /// The v1 controllers; `None` for the unified hierarchy.
    pub controllers: Option<String>,
}

/// Controllers whose limits programs look for. Java, Go, .NET and Node.js size themselves by them.
const SHOWN: [Controller; 5] =
    [Controller::Memory, Controller::Cpu, Controller::CpuAccounting, Controller::CpuSet, Controller::Pids];
/// All controllers that a v1 hierarchy can have.
const V1_CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// Why the host's cgroups cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The table of mounts cannot be read.
    #[error("could not read /proc/self/mountinfo")]
    Mounts(#[source] io::Error),
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted")]
    None,
}

impl Layout {
    /// Reads the layout of this host.
    pub fn detect() -> Result<Self, LayoutError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(LayoutError::Mounts)?;
        let layout = Self::parse(&mounts, |v2| fs::read_to_string(v2.join("cgroup.controllers")).unwrap_or_default());
        if layout.hierarchies().is_empty() { Err(LayoutError::None) } else { Ok(layout) }
    }

    fn parse(mountinfo: &str, v2_controllers: impl Fn(&Path) -> String) -> Self {
        let mut layout = Self::default();
        for line in mountinfo.lines() {
            let Some((front, back)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = front.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut back = back.split(' ');
            match (back.next(), back.nth(1)) {
                (Some("cgroup2"), _) => layout.add_v2(mount_point, &v2_controllers),
                (Some("cgroup"), Some(options)) => layout.add_v1(&mount_point, options),
                _ => {}
            }
        }
        layout
    }

    fn add_v1(&mut self, mount_point: &Path, options: &str) {
        let options: Vec<&str> = options.split(',').collect();
        let controllers: Vec<&str> = options.iter().copied().filter(|name| V1_CONTROLLERS.contains(name)).collect();
        self.v1_options.entry(mount_point.to_owned()).or_insert_with(|| controllers.join(","));
        for controller in Controller::ALL {
            if options.contains(&controller.v1_name()) {
                self.v1.entry(controller).or_insert_with(|| mount_point.to_owned());
            }
        }
        if options.iter().any(|option| option.starts_with("name=")) {
            self.named.insert(mount_point.to_owned());
        }
    }

    fn add_v2(&mut self, mount_point: PathBuf, controllers: &impl Fn(&Path) -> String) {
        if self.v2.is_some() {
            return;
        }
        let names = controllers(&mount_point);
        let has = |controller: Controller| match controller.v2_name() {
            Some(name) => names.split_whitespace().any(|word| word == name),
            None => true,
        };
        self.v2_has = Controller::ALL.into_iter().filter(|controller| has(*controller)).collect();
        self.v2 = Some(mount_point);
    }

    /// Returns the root of the hierarchy with this controller. Freezing uses v2 if possible, because a task that v1 has
    /// frozen cannot be killed before it is thawed.
    pub fn directory(&self, controller: Controller) -> Option<&Path> {
        let v2 = self.v2.as_deref().filter(|_| self.v2_has.contains(&controller));
        match controller {
            Controller::Freezer => v2.or_else(|| self.v1.get(&controller).map(PathBuf::as_path)),
            _ => self.v1.get(&controller).map(PathBuf::as_path).or(v2),
        }
    }

    /// Returns the root of the v1 hierarchy with this controller.
    pub(super) fn v1_directory(&self, controller: Controller) -> Option<&Path> {
        self.v1.get(&controller).map(PathBuf::as_path)
    }

    /// Whether the controller is used through v2.
    pub fn is_v2(&self, controller: Controller) -> bool {
        self.v2.is_some() && self.directory(controller) == self.v2.as_deref()
    }

    /// The root of the unified hierarchy.
    pub fn v2_root(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// Returns all hierarchies that a sandbox joins.
    pub fn hierarchies(&self) -> BTreeSet<&Path> {
        let used = Controller::ALL.into_iter().filter_map(|controller| self.directory(controller));
        used.chain(self.named.iter().map(PathBuf::as_path)).chain(self.v2.as_deref()).collect()
    }

    /// Returns the hierarchies in which a sandbox sees its own cgroups. It has joined each of them, so it sees its own
    /// cgroup as the root.
    pub fn views(&self) -> Vec<CgroupView> {
        if self.is_v2(Controller::Memory) {
            return vec![CgroupView { name: String::new(), controllers: None }];
        }
        let directories: BTreeSet<_> = SHOWN.iter().filter_map(|controller| self.v1.get(controller)).collect();
        let options = directories.into_iter().filter_map(|directory| self.v1_options.get(directory));
        options.map(|options| CgroupView { name: options.clone(), controllers: Some(options.clone()) }).collect()
    }

    /// The controllers to delegate in the unified hierarchy.
    pub(super) fn v2_controllers(&self) -> Option<(&Path, Vec<&'static str>)> {
        let used = |controller: &Controller| self.is_v2(*controller);
        let names: Vec<_> = Controller::ALL.into_iter().filter(used).filter_map(Controller::v2_name).collect();
        self.v2.as_deref().filter(|_| !names.is_empty()).map(|root| (root, names))
    }

    /// The limits that cannot be enforced on this host, by name.
    pub fn missing(&self) -> Vec<&'static str> {
        [Controller::Memory, Controller::Cpu, Controller::Pids, Controller::Freezer]
            .into_iter()
            .filter(|controller| self.directory(*controller).is_none())
            .map(Controller::v1_name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
31 25 0:28 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct
37 25 0:34 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
32 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 25 0:30 / /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids
34 25 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
35 25 0:32 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
36 25 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn a_hybrid_host_uses_v1_limits_and_the_v2_freezer() {
        let layout = Layout::parse(HYBRID, |_| String::new());
        assert_eq!(layout.directory(Controller::Memory), Some(Path::new("/sys/fs/cgroup/memory")));
        assert!(layout.is_v2(Controller::Freezer));
        assert!(!layout.is_v2(Controller::CpuAccounting));
        assert!(layout.hierarchies().contains(Path::new("/sys/fs/cgroup/systemd")));
        assert_eq!(layout.v2_controllers(), None);
        let names: Vec<_> = layout.views().into_iter().map(|view| view.name).collect();
        assert_eq!(names, ["cpu", "cpuacct", "cpuset", "memory", "pids"]);
        assert_eq!(layout.missing(), Vec::<&str>::new());
    }

    #[test]
    fn a_pure_v2_host_uses_one_hierarchy() {
        let line = "36 25 0:33 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let layout = Layout::parse(line, |_| "cpuset cpu io memory pids".to_owned());
        assert_eq!(layout.hierarchies().len(), 1);
        assert_eq!(layout.v2_controllers(), Some((Path::new("/sys/fs/cgroup"), vec!["memory", "cpu", "pids"])));
        assert!(layout.is_v2(Controller::CpuAccounting));
        assert_eq!(layout.views(), [CgroupView { name: String::new(), controllers: None }]);
        assert_eq!(layout.missing(), Vec::<&str>::new());
    }

    #[test]
    fn a_joint_v1_hierarchy_serves_both_controllers() {
        let line = "30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,xattr,cpu,cpuacct\n";
        let layout = Layout::parse(line, |_| String::new());
        assert_eq!(layout.directory(Controller::Cpu), layout.directory(Controller::CpuAccounting));
        let joint = CgroupView { name: "cpu,cpuacct".to_owned(), controllers: Some("cpu,cpuacct".to_owned()) };
        assert_eq!(layout.views(), [joint]);
        assert_eq!(layout.missing(), vec!["memory", "pids", "freezer"]);
    }
}
