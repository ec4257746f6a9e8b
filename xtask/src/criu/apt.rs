//! An apt with the sources and the installed packages of this machine, but with lists and downloads of its own. It changes
//! nothing on this machine, and works if the lists of this machine are old or missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::log::Log;
use super::{create_directory, write};
use crate::program::{find_program, output_of};

/// Downloads a file as apt does, with this machine's settings of proxies and certificates.
const HELPER: &str = "/usr/lib/apt/apt-helper";

pub(super) struct Apt<'a> {
    directory: PathBuf,
    log: &'a Log,
}

impl<'a> Apt<'a> {
    pub(super) fn new(directory: &Path, log: &'a Log) -> Result<Self, String> {
        if find_program("apt-get").is_none() {
            return Err("its source and its libraries come with apt, which this machine does not have".to_owned());
        }
        for part in ["lists/partial", "cache/archives/partial"] {
            create_directory(&directory.join(part))?;
        }
        write(&directory.join("apt.conf"), &settings(directory))?;
        Ok(Self { directory: directory.to_owned(), log })
    }

    /// Downloads packages, and what they depend on and this machine lacks. Returns the files.
    pub(super) fn download_packages(&self, packages: &[&str]) -> Result<Vec<PathBuf>, String> {
        // Without this option, a failed download is only a warning.
        self.log.run("apt-get update", self.command("apt-get").args(["update", "--error-on=any"]))?;
        let mut install = self.command("apt-get");
        // Installed ones too: the build uses only these.
        install.args(["install", "--download-only", "--yes", "--no-install-recommends", "--reinstall"]).args(packages);
        self.log.run("apt-get install --download-only", &mut install)?;
        deb_files(&self.directory.join("cache/archives"))
    }

    /// Downloads a file. Its hash is for the caller to check.
    pub(super) fn download_file(&self, address: &str, file: &Path) -> Result<(), String> {
        let mut helper = self.command(HELPER);
        self.log.run("the download of the source", helper.arg("download-file").arg(address).arg(file))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.arg("--config-file").arg(self.directory.join("apt.conf")).arg("-q");
        command
    }
}

/// What apt reads after this machine's settings.
fn settings(directory: &Path) -> String {
    format!(
        "// The hooks of this machine are about its own packages.\n\
         #clear APT::Update;\n\
         #clear DPkg;\n\
         // The user that apt downloads as can't enter the cache directory.\n\
         APT::Sandbox::User \"root\";\n\
         // All locks are this machine's.\n\
         Debug::NoLocking \"true\";\n\
         // Copies of an archive may be older than their indexes allow. The signatures count, not the date.\n\
         Acquire::Check-Valid-Until \"false\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         Dir::State::lists \"{lists}\";\n\
         Dir::Cache \"{cache}\";\n",
        lists = directory.join("lists").display(),
        cache = directory.join("cache").display(),
    )
}

fn deb_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("cannot list {}: {error}", directory.display());
    let listed = fs::read_dir(directory).map_err(failed)?;
    let mut files = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "deb"));
    Ok(files)
}

/// Returns the Debian archive that apt on this machine uses.
pub(super) fn debian_archive() -> Option<String> {
    let listed = output_of(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"])).ok()?;
    pick_archive(&listed).map(str::to_owned)
}

fn pick_archive(listed: &str) -> Option<&str> {
    listed.lines().map(|uri| uri.trim_end_matches('/')).find(|uri| uri.ends_with("/debian"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_the_machines_own() {
        let listed = "http://a.example/debian-security/\nhttp://a.example/debian/\nhttp://b.example/debian\n";
        assert_eq!(pick_archive(listed), Some("http://a.example/debian"));
        assert_eq!(pick_archive("http://a.example/ubuntu/\n"), None);
    }
}
