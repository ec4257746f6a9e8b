//! Packages of the host that Isopod can do without, and what for each is missed.

use std::path::Path;

/// A package, and the program that shows that it is installed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostPackage {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    program: &'static str,
}

const DISK_LIMITS: &str = "btrfs-progs";

const OPTIONAL: &[HostPackage] = &[
    HostPackage { name: DISK_LIMITS, purpose: "disk limits of sandboxes", program: "mkfs.btrfs" },
    HostPackage { name: "python3", purpose: "Python in sandboxes", program: "python3" },
    HostPackage { name: "python3-pip", purpose: "a quicker code interpreter template", program: "pip3" },
    HostPackage { name: "git", purpose: "git in sandboxes", program: "git" },
    HostPackage { name: "curl", purpose: "curl in sandboxes", program: "curl" },
];

/// Those that this machine lacks.
pub(crate) fn missing_packages() -> Vec<&'static HostPackage> {
    missing(has_program)
}

/// As [`missing_packages`], on a machine of which is known whether it has disk limits: some have them without a package.
pub(crate) fn missing_packages_beside(has_disk_limits: bool) -> Vec<&'static HostPackage> {
    let is_missed = |package: &&HostPackage| !(has_disk_limits && package.name == DISK_LIMITS);
    missing_packages().into_iter().filter(is_missed).collect()
}

/// For a sentence.
pub(crate) fn list(packages: &[&HostPackage]) -> String {
    let shown = packages.iter().map(|package| format!("{} ({})", package.name, package.purpose));
    shown.collect::<Vec<_>>().join(", ")
}

fn missing(is_there: impl Fn(&str) -> bool) -> Vec<&'static HostPackage> {
    OPTIONAL.iter().filter(|package| !is_there(package.program)).collect()
}

/// Whether the system has a program. Elsewhere, such as in somebody's home, sandboxes would not find it.
pub(crate) fn has_program(program: &str) -> bool {
    let directories = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    directories.iter().any(|directory| Path::new(directory).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_program_is_missing() {
        let names = |packages: Vec<&HostPackage>| packages.iter().map(|package| package.name).collect::<Vec<_>>();
        assert_eq!(names(missing(|program| program != "mkfs.btrfs")), ["btrfs-progs"]);
        assert!(missing(|_| true).is_empty());
        assert_eq!(missing(|_| false).len(), OPTIONAL.len());
    }

    #[test]
    fn a_list_says_what_each_is_for() {
        assert_eq!(list(&missing(|program| program != "mkfs.btrfs")), "btrfs-progs (disk limits of sandboxes)");
    }
}
