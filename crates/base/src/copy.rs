//! Copies allow-listed trees from the host into a layer. Links are copied as links. Special files, files that not every
//! user may read, and files that look like secrets are left out.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::allowlist::{Allowed, exclusion, names_match};
use super::error::BaseError;
use super::host::{Host, is_public, kind};
use super::layer::{Layer, Meta};
use super::manifest::{SkipReason, Skipped};
use super::secrets::looks_secret;

/// Whether the contents are scanned for secrets before they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretScan {
    /// For configuration files, which may hold secrets.
    On,
    /// For the state of package managers, which is large and holds no secrets by design.
    Off,
}

/// Far more than any file on the allow-list needs.
const FILE_LIMIT: u64 = 256 << 20;

/// Drops the set-uid and set-gid bits, which configuration files do not need.
const SETTINGS_MODE: u32 = 0o1777;

/// Copies from a host into a layer, and collects what it skips.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    host: &'a Host,
    layer: &'a Layer,
    skipped: Vec<Skipped>,
}

impl<'a> Copier<'a> {
    pub(super) fn new(host: &'a Host, layer: &'a Layer) -> Self {
        Self { host, layer, skipped: Vec::new() }
    }

    /// Copies every path of a list that exists on the host.
    pub(super) fn copy_list(&mut self, list: &[Allowed], scan: SecretScan) -> Result<(), BaseError> {
        for path in list.iter().flat_map(|entry| expand(self.host, entry.path)) {
            self.copy(&path, scan)?;
        }
        Ok(())
    }

    /// Copies one file or tree to the same path. Does nothing if the host does not have it.
    pub(super) fn copy(&mut self, path: &Path, scan: SecretScan) -> Result<(), BaseError> {
        let Some(stat) = self.host.stat(path) else { return Ok(()) };
        if let Some(why) = refusal(path, &stat) {
            self.skip(path, why);
            return Ok(());
        }
        self.ensure_parents(path)?;
        match kind(&stat) {
            FileType::Directory => self.copy_dir(path, &stat, scan),
            FileType::Symlink => self.copy_link(path, &stat),
            _ => self.copy_file(path, scan),
        }
    }

    /// Records that a file was left out.
    pub(super) fn skip(&mut self, path: &Path, why: SkipReason) {
        self.skipped.push(Skipped { path: path.into(), why });
    }

    /// The files that were left out.
    pub(super) fn into_skipped(self) -> Vec<Skipped> {
        self.skipped
    }

    fn copy_dir(&mut self, path: &Path, stat: &Stat, scan: SecretScan) -> Result<(), BaseError> {
        self.layer.dir_at(path, settings_meta(stat))?;
        for name in self.host.list(path) {
            self.copy(&path.join(name), scan)?;
        }
        Ok(())
    }

    fn copy_link(&mut self, path: &Path, stat: &Stat) -> Result<(), BaseError> {
        match self.host.read_link(path) {
            Some(target) => self.layer.symlink_at(path, &target, settings_meta(stat)),
            None => {
                self.skip(path, SkipReason::Unreadable);
                Ok(())
            }
        }
    }

    fn copy_file(&mut self, path: &Path, scan: SecretScan) -> Result<(), BaseError> {
        match self.read(path, scan) {
            Ok((contents, meta)) => self.layer.file_at(path, &contents, meta),
            Err(why) => {
                self.skip(path, why);
                Ok(())
            }
        }
    }

    fn read(&self, path: &Path, scan: SecretScan) -> Result<(Vec<u8>, Meta), SkipReason> {
        let (file, stat) = self.host.open_public(path).ok_or(SkipReason::Unreadable)?;
        let mut contents = Vec::new();
        file.take(FILE_LIMIT + 1).read_to_end(&mut contents).map_err(|_| SkipReason::Unreadable)?;
        if contents.len() as u64 > FILE_LIMIT {
            return Err(SkipReason::TooLarge);
        }
        if scan == SecretScan::On && looks_secret(&contents) {
            return Err(SkipReason::LooksSecret);
        }
        Ok((contents, settings_meta(&stat)))
    }

    /// Creates the directories above an entry, with the host's owner and mode but without the rest of their contents.
    fn ensure_parents(&self, path: &Path) -> Result<(), BaseError> {
        let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
        if self.layer.stat(parent).is_some() {
            return Ok(());
        }
        self.ensure_parents(parent)?;
        let meta = self.host.stat(parent).map_or(Meta::root(0o755), |stat| settings_meta(&stat));
        self.layer.dir_at(parent, meta)
    }
}

fn refusal(path: &Path, stat: &Stat) -> Option<SkipReason> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match kind(stat) {
        _ if exclusion(&name).is_some() => Some(SkipReason::Name),
        FileType::Symlink => None,
        FileType::RegularFile | FileType::Directory => (!is_public(stat)).then_some(SkipReason::NotPublic),
        _ => Some(SkipReason::Special),
    }
}

/// Keeps the host's owner if it is a system account. The ids of regular users belong to someone else in a sandbox.
fn settings_meta(stat: &Stat) -> Meta {
    let meta = Meta::of_host(stat);
    let system = |id: u32| if id < 1000 { id } else { 0 };
    Meta { uid: system(meta.uid), gid: system(meta.gid), ..meta }.with_mode(meta.mode & SETTINGS_MODE)
}

/// The paths that a pattern of the list matches.
pub(super) fn expand(host: &Host, pattern: &str) -> Vec<PathBuf> {
    let path = Path::new(pattern);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    if !name.contains('*') {
        return vec![path.to_owned()];
    }
    let matches = |entry: &OsString| entry.to_str().is_some_and(|entry| names_match(name, entry));
    host.list(parent).into_iter().filter(matches).map(|entry| parent.join(entry)).collect()
}
