//! Builds CRIU with packages that are only unpacked. The build sees them over this machine's `/usr`, in a mount namespace.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::create_directory;
use super::log::Log;
use crate::program::processors;

/// Beside gcc. Not here: what CRIU would use if it was there, but Isopod does not need, such as nftables, SELinux and libbpf.
const PACKAGES: [&str; 11] = [
    "libcap-dev",
    "libnet1-dev",
    "libnl-3-dev",
    "libprotobuf-c-dev",
    "libprotobuf-dev",
    "make",
    "pkg-config",
    "protobuf-c-compiler",
    "protobuf-compiler",
    "uuid-dev",
    "xz-utils",
];

/// Shows the packages over `/usr`, then runs a command in the directory of the source. CRIU uses libbsd if it finds its headers;
/// it finds other libraries with `pkg-config`.
const ENTER: &str = "mount -t overlay overlay -o lowerdir=usr:/usr /usr
if [ -d /usr/include/bsd ]; then mount -t tmpfs tmpfs /usr/include/bsd; fi
cd ../source
exec \"$@\"";

/// As variables of the environment: the makefiles add to them.
const VARIABLES: [(&str, &str); 5] = [
    ("LC_ALL", "C"),
    ("LDFLAGS", "-static"),
    ("NO_GNUTLS", "1"),
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    ("PKG_CONFIG", "pkg-config --static"),
];

/// In the source.
const PROGRAM: &str = "criu/criu";
/// Where the packages have what `pkg-config` knows.
const PKG_CONFIG_FILES: &str = "usr/lib/x86_64-linux-gnu/pkgconfig";

/// What the program depends on beside its source.
pub(super) fn recipe() -> impl Iterator<Item = &'static str> {
    let variables = VARIABLES.into_iter().flat_map(|(name, value)| [name, value]);
    PACKAGES.into_iter().chain([ENTER]).chain(variables)
}

pub(super) struct BuildRoot<'a> {
    packages: PathBuf,
    source: PathBuf,
    log: &'a Log,
}

impl<'a> BuildRoot<'a> {
    pub(super) fn new(work: &Path, apt: &Apt<'_>, log: &'a Log) -> Result<Self, String> {
        let (packages, source) = (work.join("packages"), work.join("source"));
        create_directory(&packages)?;
        create_directory(&source)?;
        for file in apt.download_packages(&PACKAGES)? {
            log.run("dpkg-deb", Command::new("dpkg-deb").arg("--extract").arg(file).arg(&packages))?;
        }
        // Packages of Debian 12 have some libraries in `/lib`, which is a link to `/usr/lib` on the machine.
        if packages.join("lib").is_dir() {
            log.run("cp", Command::new("cp").args(["--archive", "lib/.", "usr/lib"]).current_dir(&packages))?;
        }
        Ok(Self { packages, source, log })
    }

    pub(super) fn source(&self) -> &Path {
        &self.source
    }

    pub(super) fn unpack(&self, archive: &Path) -> Result<(), String> {
        let mut file = OsString::from("--file=");
        file.push(archive);
        self.run("tar", &["--extract".as_ref(), "--xz".as_ref(), "--strip-components=1".as_ref(), &file])
    }

    /// Returns the program.
    pub(super) fn build(&self) -> Result<PathBuf, String> {
        self.run("make", &[format!("-j{}", processors()).as_ref(), "criu".as_ref()])?;
        self.run("strip", &[PROGRAM.as_ref()])?;
        Ok(self.source.join(PROGRAM))
    }

    /// Runs a program in the directory of the source.
    fn run(&self, program: &str, arguments: &[&OsStr]) -> Result<(), String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-ec", ENTER, "sh", program]).args(arguments);
        command.current_dir(&self.packages).env_clear().envs(VARIABLES);
        command.env("PKG_CONFIG_LIBDIR", self.packages.join(PKG_CONFIG_FILES));
        self.log.run(program, &mut command)
    }
}
