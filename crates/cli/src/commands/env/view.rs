//! The command's view of files: another resolver, no caches of names before it, and one more authority to trust. The files
//! are in a file system of their own, which ends with the last process that sees it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::cover::Cover;
use super::plan::Plan;
use crate::commands::docker;
use crate::env_names;
use crate::failure::Hint;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const NSSWITCH: &str = "/etc/nsswitch.conf";
/// The C library asks this daemon first, which knows nothing of our names.
const NAME_CACHE: &str = "/var/run/nscd";

#[derive(Debug)]
pub(super) struct View {
    directory: PathBuf,
    covers: Vec<Cover>,
    /// A directory with the command's `docker`, if that is our stand-in.
    programs: Option<PathBuf>,
}

impl View {
    /// Makes it, in mounts that are this process' own.
    pub(super) fn make(plan: &Plan) -> anyhow::Result<Self> {
        let mut view = Self { directory: private_directory()?, covers: Vec::new(), programs: None };
        view.cover_file(Path::new(RESOLV_CONF), "resolv.conf", |text| resolv_conf(text, plan))?;
        // Without the file, the C library asks DNS, too.
        if Path::new(NSSWITCH).exists() {
            view.cover_file(Path::new(NSSWITCH), "nsswitch.conf", nsswitch)?;
        }
        for (number, bundle) in plan.bundles.iter().enumerate() {
            view.cover_file(bundle, &format!("bundle-{number}.pem"), |text| format!("{text}\n{}", plan.authority))?;
        }
        if Path::new(NAME_CACHE).is_dir() {
            let source = view.directory.join("empty");
            fs::create_dir(&source).context("could not make an empty directory")?;
            view.covers.push(Cover { source, target: NAME_CACHE.into() });
        }
        if plan.has_docker {
            view.programs = Some(add_docker(&view.directory).context("could not make a docker for the command")?);
        }
        for cover in &view.covers {
            cover.ensure().map_err(|error| {
                let what = format!("could not let the command see another {}", cover.target.display());
                Hint::because(what, error, "run it with sudo, if this system lets only root mount files")
            })?;
        }
        Ok(view)
    }

    /// Where the command looks for programs, if not where this one does.
    pub(super) fn path(&self) -> anyhow::Result<Option<OsString>> {
        let Some(programs) = &self.programs else { return Ok(None) };
        let before = std::env::var_os(env_names::PATH).unwrap_or_default();
        let all = [programs.clone()].into_iter().chain(std::env::split_paths(&before));
        Ok(Some(std::env::join_paths(all).context("could not add a directory to PATH")?))
    }

    /// Mounts again what somebody outside has replaced.
    pub(super) fn ensure(&self) {
        for cover in &self.covers {
            // A file that is just being replaced is there the next time.
            let _ = cover.ensure();
        }
    }

    /// Directories in which a file may be replaced. Both ends of a link count.
    pub(super) fn watched(&self) -> impl Iterator<Item = PathBuf> {
        let ends = self.covers.iter().flat_map(|cover| [Some(cover.target.clone()), cover.target.canonicalize().ok()]);
        ends.flatten().filter_map(|path| path.parent().map(Path::to_owned))
    }

    fn cover_file(&mut self, target: &Path, name: &str, change: impl Fn(&str) -> String) -> anyhow::Result<()> {
        let text = fs::read_to_string(target).with_context(|| format!("could not read {}", target.display()))?;
        let source = self.directory.join(name);
        fs::write(&source, change(&text)).with_context(|| format!("could not write {}", source.display()))?;
        self.covers.push(Cover { source, target: target.to_owned() });
        Ok(())
    }
}

impl Drop for View {
    /// What the command has left running keeps the files that it sees.
    fn drop(&mut self) {
        let _ = unmount(&self.directory, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.directory);
    }
}

/// A file system in memory that nobody else sees, on a directory that everybody does.
fn private_directory() -> anyhow::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)?;
    let directory = std::env::temp_dir().join(format!("isopod-env-{}", hex::encode(random)));
    fs::create_dir(&directory).with_context(|| format!("could not make {}", directory.display()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(error) = mount("isopod-env", &directory, "tmpfs", flags, Some(c"mode=0755")) {
        let _ = fs::remove_dir(&directory);
        let hint = "run it with sudo, if this system lets only root mount files";
        return Err(Hint::because("could not mount a file system of the command's own", error, hint));
    }
    Ok(directory)
}

/// This program under another name. Nothing is executed from the directory itself, which does not allow it.
fn add_docker(directory: &Path) -> io::Result<PathBuf> {
    let programs = directory.join("bin");
    fs::create_dir(&programs)?;
    symlink(std::env::current_exe()?, programs.join(docker::NAME))?;
    Ok(programs)
}

/// Ours is the only resolver: the C library would ask others when it is slow, and they would say that there is no such name.
fn resolv_conf(text: &str, plan: &Plan) -> String {
    let is_kept = |line: &&str| matches!(line.split_ascii_whitespace().next(), Some("search" | "domain" | "options"));
    let kept: String = text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    format!("nameserver {}\n{kept}", plan.address)
}

/// Hosts are looked for in the hosts file and in DNS. Other ways know nothing of our names, and may end the search.
fn nsswitch(text: &str) -> String {
    let is_hosts = |line: &str| line.trim_start().starts_with("hosts:");
    let others: String = text.lines().filter(|line| !is_hosts(line)).map(|line| format!("{line}\n")).collect();
    format!("{others}hosts: files dns\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_resolver_is_the_only_one_and_the_other_settings_stay() {
        let plan = Plan {
            address: [127, 80, 1, 2].into(),
            domains: Vec::new(),
            authority: String::new(),
            bundles: Vec::new(),
            system_bundle: PathBuf::new(),
            has_docker: false,
        };
        let text = "# nameserver\nnameserver 192.0.2.1\n\tsearch corp.example\noptions edns0\nnameserver ::1\n";
        assert_eq!(resolv_conf(text, &plan), "nameserver 127.80.1.2\n\tsearch corp.example\noptions edns0\n");
    }

    #[test]
    fn hosts_are_looked_for_in_files_and_dns() {
        let text = "passwd: files\n hosts: files mdns4_minimal [NOTFOUND=return] dns\nhosts: resolve\n";
        assert_eq!(nsswitch(text), "passwd: files\nhosts: files dns\n");
    }
}
