//! The identity of a base: a hash over everything on the host that determines the result. Reading all of it takes tens
//! of milliseconds. A second, cheap hash over sizes, times and inode numbers tells whether it must be read again. The
//! package database, which every package manager writes, reveals changes deep inside a directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, Stat};
use sha2::{Digest, Sha256};

use super::allowlist::{APT_HOOKS, ETC};
use super::generation::TEMPORARY;
use super::host::{Host, kind};
use super::mounts::mounts_below;

/// Increase this whenever the same host would yield different layers.
pub(super) const FORMAT: u32 = 4;

/// Files and trees whose contents count, in addition to the allow-list of `/etc`.
const CONTENTS: &[&str] = &[
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/gitconfig",
    "etc/group",
    "etc/npmrc",
    "etc/passwd",
    "etc/pip.conf",
    "etc/pki/tls/openssl.cnf",
    "etc/ssl/openssl.cnf",
    "lib/apk/db/installed",
    "usr/etc/npmrc",
    "usr/lib/os-release",
    "usr/local/share/ca-certificates",
    "usr/pip.conf",
    "var/lib/dpkg/status",
];

/// Files and directories of which only names, sizes and times count.
const LISTINGS: &[&str] = &[
    "usr/bin",
    "usr/lib",
    "usr/lib/node_modules",
    "usr/lib/python3/dist-packages",
    "usr/lib/sysimage/rpm",
    "usr/sbin",
    "var/lib/pacman/local",
    "var/lib/rpm",
];

/// Programs whose links are resolved.
const PROGRAMS: &[&str] = &["usr/bin/node", "usr/bin/python3"];

/// More than the size of any file that counts.
const CONTENTS_LIMIT: u64 = 256 << 20;

/// The inputs of a fingerprint.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    pub(super) host: &'a Host,
    /// The hash of the guest binary and of the interpreter's driver.
    programs: [u8; 32],
    pub(super) frozen: bool,
}

impl<'a> Identity<'a> {
    pub(super) fn new(host: &'a Host, guest_binary: &[u8], frozen: bool) -> Self {
        let mut programs = Sha256::new();
        field(&mut programs, guest_binary);
        for (name, contents) in crate::driver_files::FILES {
            field(&mut programs, name.as_bytes());
            field(&mut programs, contents);
        }
        Self { host, programs: programs.finalize().into(), frozen }
    }

    /// The cheap hash. If it is unchanged, so is the fingerprint.
    pub(super) fn stat_key(&self) -> String {
        let mut hash = self.begin(b"stat");
        for path in self.paths() {
            hash_stat(&mut hash, &path, self.host.stat(&path).as_ref());
        }
        self.hash_programs(&mut hash);
        hex::encode(hash.finalize())
    }

    pub(super) fn fingerprint(&self) -> String {
        let mut hash = self.begin(b"contents");
        for path in self.paths() {
            match LISTINGS.iter().any(|listing| path == Path::new(listing)) {
                true => self.hash_listing(&mut hash, &path),
                false => self.hash_contents(&mut hash, &path),
            }
        }
        self.hash_programs(&mut hash);
        hex::encode(hash.finalize())
    }

    fn begin(&self, purpose: &[u8]) -> Sha256 {
        let mut hash = Sha256::new();
        field(&mut hash, purpose);
        hash.update(FORMAT.to_le_bytes());
        hash.update(self.programs);
        hash.update([u8::from(self.frozen)]);
        field(&mut hash, self.host.path().as_os_str().as_bytes());
        // Mounts below /usr are hidden, so a new mount means a new base. If this cannot be read, the build reports it.
        for mount in mounts_below(&self.host.path().join("usr")).unwrap_or_default() {
            field(&mut hash, mount.as_os_str().as_bytes());
        }
        hash
    }

    fn paths(&self) -> Vec<PathBuf> {
        let listed = ETC.iter().flat_map(|entry| super::copy::expand(self.host, entry.path));
        listed.chain(CONTENTS.iter().chain(LISTINGS).map(PathBuf::from)).collect()
    }

    /// Hashes the whole tree below `path` without times, so that rewriting a file with the same contents makes no new
    /// base.
    fn hash_contents(&self, hash: &mut Sha256, path: &Path) {
        let Some(stat) = self.host.stat(path) else { return field(hash, b"absent") };
        field(hash, path.as_os_str().as_bytes());
        hash.update(stat.st_mode.to_le_bytes());
        hash.update(stat.st_uid.to_le_bytes());
        match kind(&stat) {
            FileType::Directory => {
                let is_hook = |name: &OsStr| name.to_str().is_some_and(|name| APT_HOOKS.contains(&name));
                let names = self.host.list(path).into_iter().filter(|name| !is_hook(name));
                names.for_each(|name| self.hash_contents(hash, &path.join(name)));
            }
            FileType::Symlink => field(hash, self.host.read_link(path).unwrap_or_default().as_bytes()),
            _ => field(hash, &self.host.read_public(path, CONTENTS_LIMIT).unwrap_or_default()),
        }
    }

    fn hash_listing(&self, hash: &mut Sha256, path: &Path) {
        for name in self.host.list(path) {
            let entry = path.join(name);
            hash_stat(hash, &entry, self.host.stat(&entry).as_ref());
        }
    }

    fn hash_programs(&self, hash: &mut Sha256) {
        for program in PROGRAMS {
            let (path, stat) = self.host.resolve(Path::new(program)).unzip();
            hash_stat(hash, &path.unwrap_or_default(), stat.as_ref());
        }
    }
}

/// Maps cheap hashes to fingerprints, in a file next to the layers. If it is lost, the host is read once more.
#[derive(Debug)]
pub(super) struct KnownKeys {
    path: PathBuf,
}

/// Enough for both ways to build and a few versions of the guest.
const KNOWN_LIMIT: usize = 16;

impl KnownKeys {
    pub(super) fn of(layers_dir: &Path) -> Self {
        Self { path: layers_dir.join("base-keys.json") }
    }

    pub(super) fn find(&self, stat_key: &str) -> Option<String> {
        self.read().remove(stat_key)
    }

    /// Remembers a pair. A failure does no harm.
    pub(super) fn remember(&self, stat_key: &str, fingerprint: &str) {
        let mut known = self.read();
        if known.len() >= KNOWN_LIMIT {
            known.clear();
        }
        known.insert(stat_key.to_owned(), fingerprint.to_owned());
        let next = self.path.with_file_name(temporary_name());
        let written = serde_json::to_vec(&known).map_err(std::io::Error::from).and_then(|text| {
            std::fs::write(&next, text)?;
            std::fs::rename(&next, &self.path)
        });
        if let Err(error) = written {
            tracing::warn!(%error, path = %self.path.display(), "cannot store the fingerprint of the host");
        }
    }

    fn read(&self) -> BTreeMap<String, String> {
        let text = std::fs::read(&self.path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// A name that no other writer uses. The prefix gets the file removed if it is never renamed.
fn temporary_name() -> String {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    format!("{TEMPORARY}keys-{}-{}", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed))
}

fn hash_stat(hash: &mut Sha256, path: &Path, stat: Option<&Stat>) {
    field(hash, path.as_os_str().as_bytes());
    let Some(stat) = stat else { return field(hash, b"absent") };
    hash.update(stat.st_mode.to_le_bytes());
    hash.update(stat.st_ino.to_le_bytes());
    hash.update(stat.st_size.to_le_bytes());
    hash.update(stat.st_mtime.to_le_bytes());
    hash.update(stat.st_mtime_nsec.to_le_bytes());
}

/// Hashes the length first, so that no two sequences of fields give the same input.
fn field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}
