//! The program that saves and restores processes, and its arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use isopod_isolation::launch::{FIRST_INHERITED_FD, IMAGES_FD, WORK_FD};
use isopod_wire::checkpoint::{Connection, RestoredEnd};

/// Our build says so in its version. Others cannot adopt the guest's children, and run programs of the sandbox.
const OUR_BUILD: &str = "isopod";

/// What to do about one that cannot be used.
const FIX: &str = "install an Isopod package, which has it, or name that of `cargo xtask setup` with --criu";

/// CRIU.
#[derive(Debug)]
pub struct Criu {
    program: OwnedFd,
}

impl Criu {
    /// Opens the program and checks that it is one that we can use. The error says why not, and what to do.
    pub fn open(path: &Path) -> Result<Self, String> {
        let place = path.display();
        let program = File::open(path).map_err(|error| format!("cannot open CRIU at {place}: {error}; {FIX}"))?;
        let version = Command::new(path).arg("--version").env_clear().stdin(Stdio::null()).output();
        let version = version.map_err(|error| format!("cannot run CRIU at {place}: {error}; {FIX}"))?;
        let version = String::from_utf8_lossy(&version.stdout);
        if !version.contains(OUR_BUILD) {
            let shown = version.lines().next().unwrap_or("no version").trim();
            return Err(format!("the CRIU at {place} ({shown}) is not the one that comes with Isopod; {FIX}"));
        }
        Ok(Self { program: program.into() })
    }

    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// Whether this is a CRIU that can save and restore sandboxes. The error says why not.
pub fn check_criu(path: &Path) -> Result<(), String> {
    Criu::open(path).map(drop)
}

/// Of a dump of all children of the guest, as children of the root.
pub(crate) fn dump_arguments(
    root: u32,
    connections: &[Connection],
    external_files: &BTreeMap<String, String>,
    watchers: &BTreeSet<String>,
) -> Vec<String> {
    let mut arguments = words(&["dump", "--adopt-children-of", "1", "--tree", &root.to_string()]);
    arguments.extend(common("dump.log", "-v3"));
    // As they are, which is stopped. "Stopped" would leave their connections as they are while they are saved.
    arguments.push("--leave-running".to_owned());
    // Nobody outside may send to a sandbox, so there is no traffic to hold back.
    arguments.extend(words(&["--network-lock", "skip"]));
    let external = connections.iter().filter_map(|connection| match connection {
        Connection::Pipe { .. } => None,
        Connection::Socket { inode } => Some(format!("unix[{inode}]")),
        Connection::Terminal { .. } => Some(terminal(connection)),
    });
    for name in external.chain(external_files.keys().cloned()) {
        arguments.extend(["--external".to_owned(), name]);
    }
    if !watchers.is_empty() {
        arguments.push("--force-irmap".to_owned());
        for place in places_of_watches(watchers) {
            arguments.extend(words(&["--irmap-scan-path", place]));
        }
    }
    arguments
}

/// Of a restore. The ends are placed in this order.
pub(crate) fn restore_arguments(ends: &[RestoredEnd]) -> Vec<String> {
    let mut arguments = words(&["restore", "--restore-detached", "--leave-stopped", "--unprivileged"]);
    arguments.extend(common("restore.log", "-v1"));
    for (number, end) in (FIRST_INHERITED_FD..).zip(ends) {
        let name = match end.connection {
            Connection::Pipe { inode } => format!("pipe:[{inode}]"),
            Connection::Socket { inode } => format!("socket:[{inode}]"),
            Connection::Terminal { .. } => terminal(&end.connection),
        };
        arguments.extend(["--inherit-fd".to_owned(), format!("fd[{number}]:{name}")]);
    }
    arguments
}

/// Where CRIU looks for watched files, which it knows only by number: first in the home directory, then in the working
/// directories of those who watch. Not everywhere, because it looks at each file there.
fn places_of_watches(watchers: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    let is_of_the_kernel =
        |place: &str| ["/proc", "/sys", "/dev"].iter().any(|kernel| Path::new(place).starts_with(kernel));
    let others = watchers.iter().map(String::as_str).filter(move |place| *place != "/" && !is_of_the_kernel(place));
    std::iter::once("/home/user").chain(others)
}

fn common(log: &str, verbosity: &str) -> Vec<String> {
    let (images, work) = (format!("/proc/self/fd/{IMAGES_FD}"), format!("/proc/self/fd/{WORK_FD}"));
    words(&[
        "--no-default-config",
        "--images-dir",
        &images,
        "--work-dir",
        &work,
        "--log-file",
        log,
        verbosity,
        "--file-locks",
        // A terminal of a client has its other end in the guest.
        "--shell-job",
        "--tcp-established",
        // They are in the sandbox's cgroups, and stay there.
        "--manage-cgroups=ignore",
    ])
}

fn terminal(connection: &Connection) -> String {
    match connection {
        Connection::Terminal { device, file_system } => format!("tty[{device:x}:{file_system:x}]"),
        _ => String::new(),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
