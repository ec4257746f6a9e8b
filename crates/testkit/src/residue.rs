//! Finds what a state directory has on the host apart from its own files: processes, mounts, cgroups, network, slots,
//! loop devices.
//!
//! Only its own, because other tests and servers run on the same host. Objects outside of the directory carry its tag,
//! or name a path in it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The kernel removes network namespaces and killed processes a moment later.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptions of everything that was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Residue {
    found: Vec<String>,
}

/// Waits a moment for the kernel, and then asserts that nothing is left.
///
/// # Panics
/// If something is left.
#[track_caller]
pub fn assert_nothing_left(state: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    let mut residue = Residue::of(state);
    while !residue.is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
        residue = Residue::of(state);
    }
    assert!(residue.is_empty(), "left on the host: {:#?}", residue.found);
}

impl Residue {
    /// Collects everything.
    pub fn of(state: &Path) -> Self {
        let mut residue = Self::default();
        residue.add_mounts(state);
        residue.add_processes(state);
        residue.add_homes(state);
        residue.add_loops(state);
        if let Ok(tag) = fs::read_to_string(state.join("tag")) {
            residue.add_cgroups(tag.trim());
            residue.add_network(tag.trim());
            residue.add_claims(tag.trim());
        }
        residue
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn add(&mut self, what: &str, name: impl std::fmt::Display) {
        self.found.push(format!("{what} {name}"));
    }

    fn add_mounts(&mut self, state: &Path) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for line in mounts.lines().filter(|line| names(line, state)) {
            self.add("mount", line);
        }
    }

    /// A process belongs to the state directory if it names it in its arguments, has it as its working directory, or is
    /// in its cgroup.
    fn add_processes(&mut self, state: &Path) {
        let tag = fs::read_to_string(state.join("tag")).unwrap_or_default();
        let group = format!("/isopod-{}/", tag.trim());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            if pid == std::process::id() {
                continue;
            }
            let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
            let cgroups = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            let is_spawner = arguments.contains("__spawner") && holds(&entry.path(), state);
            let names_state = names(&arguments, state);
            // The storage daemon and its supervisor name themselves by their verb, whatever path they were started by.
            let is_ours = names_state && ["isopod", "__storaged"].iter().any(|word| arguments.contains(word));
            let is_inside = cgroups.lines().any(|line| format!("{line}/").contains(&group));
            if is_spawner || is_ours || (!tag.is_empty() && is_inside) {
                self.add("process", format!("{pid}: {arguments}"));
            }
        }
    }

    fn add_homes(&mut self, state: &Path) {
        for home in fs::read_dir(state.join("homes")).into_iter().flatten().flatten() {
            for entry in fs::read_dir(home.path().join("boxes")).into_iter().flatten().flatten() {
                self.add("record", entry.path().display());
            }
            if home.file_name() != "serve" {
                self.add("home", home.path().display());
            }
        }
        for area in fs::read_dir(state.join("disk/areas")).into_iter().flatten().flatten() {
            self.add("files", area.path().display());
        }
    }

    fn add_loops(&mut self, state: &Path) {
        for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            if names(&file, state) {
                self.add("loop device", device.file_name().to_string_lossy());
            }
        }
    }

    fn add_cgroups(&mut self, tag: &str) {
        let name = format!("isopod-{tag}");
        let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        for directory in hierarchies.chain(["/sys/fs/cgroup".into()]).map(|path| path.join(&name)) {
            if directory.is_dir() {
                self.add("cgroup", directory.display());
            }
        }
    }

    fn add_network(&mut self, tag: &str) {
        for link in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
            let name = link.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("i{tag}-")) {
                self.add("interface", name);
            }
        }
        let tables = Command::new("nft").args(["list", "tables"]).output().expect("nft is installed");
        let tables = String::from_utf8_lossy(&tables.stdout).into_owned();
        for line in tables.lines().filter(|line| line.ends_with(&format!("isopod-{tag}"))) {
            self.add("rules", line);
        }
    }

    fn add_claims(&mut self, tag: &str) {
        for claim in fs::read_dir("/run/isopod/slots").into_iter().flatten().flatten() {
            let words = fs::read_link(claim.path()).unwrap_or_default();
            if words.to_string_lossy().starts_with(&format!("{tag}/")) {
                self.add("slot", claim.path().display());
            }
        }
    }
}

/// Whether a process has a file of the state directory open, such as its log.
fn holds(process: &Path, state: &Path) -> bool {
    let links = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    links.filter_map(|link| fs::read_link(link.path()).ok()).any(|target| target.starts_with(state))
}

/// Whether a text of the kernel names this directory or something below it, as opposed to one whose name starts alike.
fn names(text: &str, state: &Path) -> bool {
    let state = state.to_string_lossy();
    let mut after = text.match_indices(&*state).map(|(at, found)| &text[at + found.len()..]);
    after.any(|rest| rest.chars().next().is_none_or(|next| next == '/' || next.is_whitespace()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_whose_name_begins_alike_is_another() {
        let state = Path::new("/var/tmp/isopod-test-a");
        for own in
            ["/var/tmp/isopod-test-a", "/var/tmp/isopod-test-a/disk.btrfs (deleted)\n", "x /var/tmp/isopod-test-a y"]
        {
            assert!(names(own, state), "{own}");
        }
        for other in ["", "/var/tmp/isopod-test-ab/disk.btrfs", "/var/tmp/isopod-test-a-other/disk", "/var/tmp/isopod"]
        {
            assert!(!names(other, state), "{other}");
        }
        assert!(names("/var/tmp/isopod-test-ab /var/tmp/isopod-test-a/x", state));
    }
}
