//! `isopod tls trust`: programs of this machine trust the local authority, or no longer do.
//!
//! There are two kinds of lists: the system's, for curl, Python's own `ssl`, Go and most others, and one for each browser
//! profile, which `certutil` changes. The authority can certify only its own names, so trusting it endangers no other site.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::person::Person;
use crate::failure::Hint;
use crate::host_packages::has_program;

/// Where Debian and Ubuntu look for authorities that the machine's owner adds.
const SYSTEM_DIRECTORY: &str = "/usr/local/share/ca-certificates";

/// An authority under the name that it has in all lists.
#[derive(Debug)]
pub(super) struct Trusted {
    name: String,
    certificate: PathBuf,
}

/// What became of the browsers' lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Browsers {
    /// How many lists were changed.
    Changed(usize),
    /// There is no `certutil` to change them with.
    NoCertutil,
}

impl Trusted {
    pub(super) fn new(name: String, certificate: PathBuf) -> Self {
        Self { name, certificate }
    }

    /// Adds the authority to the system's list.
    pub(super) fn add_to_system(&self) -> anyhow::Result<()> {
        let directory = Path::new(SYSTEM_DIRECTORY);
        fs::create_dir_all(directory).with_context(|| format!("could not create {SYSTEM_DIRECTORY}"))?;
        let target = self.system_file();
        fs::copy(&self.certificate, &target).with_context(|| format!("could not write {}", target.display()))?;
        update_system(&[])
    }

    /// Removes it there. Returns whether it was there.
    pub(super) fn remove_from_system(&self) -> anyhow::Result<bool> {
        match fs::remove_file(self.system_file()) {
            Ok(()) => update_system(&["--fresh"]).map(|()| true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("could not remove {}", self.system_file().display())),
        }
    }

    /// Adds the authority to the lists of this person's browsers.
    pub(super) fn add_to_browsers(&self, person: &Person) -> anyhow::Result<Browsers> {
        if !has_program("certutil") {
            return Ok(Browsers::NoCertutil);
        }
        ensure_chromium_list(person)?;
        let certificate = fs::read(&self.certificate).context("could not read the authority's certificate")?;
        let lists = browser_lists(&person.home);
        for list in &lists {
            // Adding a name twice would be an error.
            let _ = certutil(person, list, &["-D", "-n", &self.name], &[]);
            certutil(person, list, &["-A", "-a", "-t", "C,,", "-n", &self.name], &certificate)?;
        }
        Ok(Browsers::Changed(lists.len()))
    }

    /// Removes it from the lists that have it.
    pub(super) fn remove_from_browsers(&self, person: &Person) -> Browsers {
        if !has_program("certutil") {
            return Browsers::NoCertutil;
        }
        let has_it = |list: &&PathBuf| certutil(person, list, &["-D", "-n", &self.name], &[]).is_ok();
        Browsers::Changed(browser_lists(&person.home).iter().filter(has_it).count())
    }

    fn system_file(&self) -> PathBuf {
        Path::new(SYSTEM_DIRECTORY).join(format!("{}.crt", self.name))
    }
}

fn update_system(options: &[&str]) -> anyhow::Result<()> {
    if !has_program("update-ca-certificates") {
        let hint = "apt-get install ca-certificates provides update-ca-certificates";
        return Err(Hint::new("this machine has no list of trusted authorities", hint));
    }
    let mut command = Command::new("update-ca-certificates");
    let output = command.args(options).stdin(Stdio::null()).output().context("could not run update-ca-certificates")?;
    if !output.status.success() {
        bail!("update-ca-certificates failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Chromium and Chrome have a list for each person, which may not exist yet.
fn ensure_chromium_list(person: &Person) -> anyhow::Result<()> {
    let list = person.home.join(CHROMIUM);
    if list.join(LIST_FILE).is_file() {
        return Ok(());
    }
    // By the person, not by root: nobody may lead root through links in a home.
    let mut make = as_person(person, "mkdir");
    let made = make.arg("-p").arg("-m").arg("700").arg(&list).output().context("could not run mkdir")?;
    if !made.status.success() {
        bail!("could not create {}: {}", list.display(), String::from_utf8_lossy(&made.stderr).trim());
    }
    certutil(person, &list, &["-N", "--empty-password"], &[])
}

/// Relative to a home.
const CHROMIUM: &str = ".pki/nssdb";
const CHROMIUM_SNAP: &str = "snap/chromium/current/.pki/nssdb";
const FIREFOX_PROFILES: [&str; 3] =
    [".mozilla/firefox", "snap/firefox/common/.mozilla/firefox", ".config/mozilla/firefox"];
const LIST_FILE: &str = "cert9.db";

/// The directories of a home that hold a browser's list.
fn browser_lists(home: &Path) -> Vec<PathBuf> {
    let profiles = FIREFOX_PROFILES.iter().flat_map(|profiles| {
        let entries = fs::read_dir(home.join(profiles)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    });
    let all = [CHROMIUM, CHROMIUM_SNAP].map(|path| home.join(path)).into_iter().chain(profiles);
    all.filter(|directory| directory.join(LIST_FILE).is_file()).collect()
}

fn certutil(person: &Person, list: &Path, arguments: &[&str], input: &[u8]) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut command = as_person(person, "certutil");
    command.arg("-d").arg(format!("sql:{}", list.display())).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends early says why.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().context("could not run certutil")?;
    if !output.status.success() {
        bail!("certutil could not change {}: {}", list.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A program with the rights of the person whose files it changes.
fn as_person(person: &Person, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", &person.home).current_dir("/").stdin(Stdio::null());
    if let Some((user, group)) = person.ids {
        command.uid(user).gid(group);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_with_a_list_count() {
        let home = tempfile::tempdir().unwrap();
        for path in [".pki/nssdb", ".mozilla/firefox/a.default", ".mozilla/firefox/Crash Reports"] {
            fs::create_dir_all(home.path().join(path)).unwrap();
        }
        assert!(browser_lists(home.path()).is_empty());
        for path in [".pki/nssdb", ".mozilla/firefox/a.default"] {
            fs::write(home.path().join(path).join(LIST_FILE), "").unwrap();
        }
        let found = browser_lists(home.path());
        assert_eq!(found, [home.path().join(".pki/nssdb"), home.path().join(".mozilla/firefox/a.default")]);
    }
}
