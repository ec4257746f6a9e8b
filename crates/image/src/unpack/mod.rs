//! Unpacks untrusted archives into a directory, without ever leaving it.
//!
//! The kernel resolves every name inside the directory (`openat2` with `RESOLVE_IN_ROOT`), so a link in the archive
//! leads nowhere else. Names with `..` are refused, devices are skipped, and everything that is written is counted: an
//! archive that exceeds its limits ends with an error.

mod compression;
mod contents;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod metered;
mod quota;
mod tree;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, linkat,
    mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

pub use compression::decompress;
pub use contents::copy_contents;
use metered::{Allowance, Metered};
pub use quota::{CHUNK, Quota, QuotaError};
use tree::Tree;

/// The kind of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A layer of an image: owners are kept, and files named `.wh.…` hide files of lower layers.
    Layer,
    /// Files that keep their owners.
    Owned,
    /// Files that belong to root after unpacking.
    Plain,
}

/// The limits of an archive.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The size after unpacking.
    pub bytes: u64,
    /// The number of files, directories and links.
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 4_000_000 }
    }
}

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// The total size of files.
    pub bytes: u64,
    /// The number of files, directories and links.
    pub entries: u64,
    /// The number of devices and other entries that were skipped.
    pub left_out: u64,
    /// The number of entries whose owner has no id in a sandbox. They belong to nobody (the user).
    pub foreign_owners: u64,
}

/// Why an archive was not unpacked. The caller must remove the part that was already unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The data is not an archive, or it is truncated.
    #[error("the archive is damaged")]
    Archive(#[source] io::Error),
    /// A name leads out of the directory.
    #[error("the archive contains {0:?}, which leads out of its directory")]
    Path(PathBuf),
    /// A name is too long for a file. The error has only its length, because it may be megabytes of arbitrary bytes.
    #[error("the archive contains a name of {0} bytes, but the maximum is {MAX_NAME}")]
    LongName(usize),
    /// The archive exceeds its limits, or there is no time or space for more.
    #[error("could not unpack the archive: {0}")]
    Quota(#[from] QuotaError),
    /// An entry could not be created.
    #[error("could not unpack {path:?}")]
    Entry {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Whiteouts as they appear in archives.
pub(crate) const HIDDEN: &[u8] = b".wh.";
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";
pub(crate) const OPAQUE_MARK: &str = "trusted.overlay.opaque";
/// The kernel's limit for a path.
const MAX_NAME: usize = 4096;
/// The maximum total length of the directory paths whose times are still to be set.
const MAX_REMEMBERED: usize = 32 << 20;
/// The last id in a sandbox, and the id of the user nobody.
const LAST_ID: u64 = 65_535;
const NOBODY: u32 = 65_534;
/// The extended attributes that are kept. Those of overlays would let an archive control how layers are combined.
pub(crate) const KEPT_MARKS: &[&str] = &["user.", "security.capability", "system.posix_acl_"];

/// Unpacks a tar stream into a directory. The stream must already be decompressed.
///
/// # Errors
/// If the archive is damaged, leads out of the directory, exceeds the limits, or cannot be written.
pub fn unpack(archive: impl Read, directory: &Path, kind: Kind, bounds: Bounds) -> Result<Unpacked, UnpackError> {
    unpack_within(archive, directory, kind, &Quota::new(bounds))
}

/// Like [`unpack`], with a quota that several archives can share.
///
/// # Errors
/// The same as for [`unpack`], and if the quota says to stop.
pub fn unpack_within(archive: impl Read, directory: &Path, kind: Kind, quota: &Quota) -> Result<Unpacked, UnpackError> {
    let failed = |source| UnpackError::Entry { path: directory.to_owned(), source };
    let root: OwnedFd = File::open(directory).map_err(failed)?.into();
    let done = Unpacked::default();
    let mut unpacker = Unpacker { tree: Tree::new(root), kind, quota, done, times: Vec::new(), remembered: 0 };
    let allowance = Allowance::default();
    let mut archive = Archive::new(Metered::new(archive, &allowance));
    let mut entries = archive.entries().map_err(UnpackError::Archive)?;
    loop {
        allowance.for_headers();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(UnpackError::Archive)?;
        allowance.for_contents();
        unpacker.entry(&mut entry)?;
        unpacker.skip_rest(&mut entry)?;
    }
    unpacker.set_directory_times();
    Ok(unpacker.done)
}

struct Unpacker<'a> {
    tree: Tree,
    kind: Kind,
    /// Skipped content, such as that of devices, counts as well, because reading it takes time.
    quota: &'a Quota,
    done: Unpacked,
    /// The times of directories. They are set after the last write into them.
    times: Vec<(PathBuf, u64)>,
    /// The total length of the paths in `times`.
    remembered: usize,
}

/// The metadata of an entry.
struct Meta {
    mode: Mode,
    owner: Option<(Uid, Gid)>,
    modified: u64,
}

impl Unpacker<'_> {
    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), UnpackError> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            return Ok(());
        }
        let path = clean(&entry.path_bytes())?;
        self.quota.take_entry()?;
        self.done.entries += 1;
        let made = match self.kind {
            Kind::Layer if is_mark(&path) => self.mark(&path),
            _ => self.make(entry, kind, &path),
        };
        made.map_err(|failure| match failure {
            Failure::Io(source) => UnpackError::Entry { path, source },
            Failure::Unpack(error) => error,
        })
    }

    /// Reads to the end of an entry, so that a header comes next in the stream.
    fn skip_rest(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), UnpackError> {
        self.quota.copy(entry, &mut io::sink()).map(drop).map_err(|error| match out_of_quota(&error) {
            Some(refused) => UnpackError::Quota(refused),
            None => UnpackError::Archive(error),
        })
    }

    fn make(&mut self, entry: &mut Entry<'_, impl Read>, kind: EntryType, path: &Path) -> Result<(), Failure> {
        let meta = self.meta(entry)?;
        if path.as_os_str().is_empty() {
            return match kind {
                EntryType::Directory => Ok(finish(self.tree.root(), &meta)?),
                _ => Ok(()),
            };
        }
        match kind {
            EntryType::Directory => self.directory(path, &meta, &marks(entry)),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.file(entry, path, &meta),
            EntryType::Symlink => {
                let target = link_name(entry)?;
                let (parent, name) = self.tree.place_for(path)?;
                symlinkat(std::ffi::OsStr::from_bytes(&target), &parent, name)?;
                own(&parent, name, &meta)
            }
            EntryType::Link => {
                let target = clean(&link_name(entry)?)?;
                let existing = self.tree.open_path(&target)?;
                let (parent, name) = self.tree.place_for(path)?;
                Ok(linkat(&existing, "", &parent, name, AtFlags::EMPTY_PATH)?)
            }
            EntryType::Fifo => {
                let (parent, name) = self.tree.place_for(path)?;
                mknodat(&parent, name, FileType::Fifo, meta.mode, 0)?;
                own(&parent, name, &meta)
            }
            // Skip devices. They have no meaning in a sandbox, which has its own.
            _ => {
                self.done.left_out += 1;
                Ok(())
            }
        }
    }

    fn directory(&mut self, path: &Path, meta: &Meta, marks: &[(String, Vec<u8>)]) -> Result<(), Failure> {
        let directory = self.tree.ensure_directory(path, true)?;
        finish(&directory, meta)?;
        set_marks(&directory, marks)?;
        // The times of so many directories are not worth the memory.
        self.remembered += path.as_os_str().len();
        if self.remembered <= MAX_REMEMBERED {
            self.times.push((path.to_owned(), meta.modified));
        }
        Ok(())
    }

    fn file(&mut self, entry: &mut Entry<'_, impl Read>, path: &Path, meta: &Meta) -> Result<(), Failure> {
        let marks = marks(entry);
        let (parent, name) = self.tree.place_for(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.done.bytes += self.quota.copy(entry, &mut file)?;
        finish(&file, meta)?;
        set_marks(&file, &marks)?;
        Ok(rustix::fs::futimens(&file, &times(meta.modified))?)
    }

    /// Handles a file in a layer that refers to lower layers.
    fn mark(&mut self, path: &Path) -> Result<(), Failure> {
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let parent = path.parent().unwrap_or(Path::new(""));
        if name == OPAQUE {
            let directory = self.tree.ensure_directory(parent, false)?;
            return Ok(rustix::fs::fsetxattr(&directory, OPAQUE_MARK, b"y", XattrFlags::empty())?);
        }
        let hidden = &name[HIDDEN.len()..];
        // Other files with this prefix are leftovers of AUFS.
        if hidden.starts_with(HIDDEN) || matches!(hidden, b"" | b"." | b"..") {
            return Ok(());
        }
        let hidden = parent.join(std::ffi::OsStr::from_bytes(hidden));
        let (parent, name) = self.tree.place_for(&hidden)?;
        Ok(mknodat(&parent, name, FileType::CharacterDevice, Mode::empty(), 0)?)
    }

    fn meta(&mut self, entry: &Entry<'_, impl Read>) -> Result<Meta, Failure> {
        let header = entry.header();
        let damaged = |error| Failure::Unpack(UnpackError::Archive(error));
        let mode = Mode::from_raw_mode(header.mode().map_err(damaged)? & 0o7777);
        let (uid, gid) = match self.kind {
            // The owners are not used, so the archive need not contain them.
            Kind::Plain => (0, 0),
            Kind::Layer | Kind::Owned => (header.uid().map_err(damaged)?, header.gid().map_err(damaged)?),
        };
        if uid > LAST_ID || gid > LAST_ID {
            self.done.foreign_owners += 1;
        }
        let id = |id: u64| u32::try_from(id).ok().filter(|_| id <= LAST_ID).unwrap_or(NOBODY);
        let owner = match self.kind {
            Kind::Plain => None,
            Kind::Layer | Kind::Owned => Some((Uid::from_raw(id(uid)), Gid::from_raw(id(gid)))),
        };
        Ok(Meta { mode, owner, modified: header.mtime().unwrap_or(0) })
    }

    fn set_directory_times(&mut self) {
        for (path, modified) in std::mem::take(&mut self.times) {
            // If a later entry has replaced the directory, that entry has its own time.
            if let Ok(directory) = self.tree.ensure_directory(&path, false) {
                let _ = rustix::fs::futimens(&directory, &times(modified));
            }
        }
    }
}

enum Failure {
    Io(io::Error),
    Unpack(UnpackError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match out_of_quota(&error) {
            Some(refused) => Self::Unpack(UnpackError::Quota(refused)),
            None => Self::Io(error),
        }
    }
}

fn out_of_quota(error: &io::Error) -> Option<QuotaError> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<QuotaError>()).cloned()
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<UnpackError> for Failure {
    fn from(error: UnpackError) -> Self {
        Self::Unpack(error)
    }
}

/// Removes a leading slash and meaningless parts from a name.
fn clean(name: &[u8]) -> Result<PathBuf, UnpackError> {
    if name.len() > MAX_NAME {
        return Err(UnpackError::LongName(name.len()));
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if part == b".." {
            return Err(UnpackError::Path(PathBuf::from(std::ffi::OsStr::from_bytes(name))));
        }
        path.push(std::ffi::OsStr::from_bytes(part));
    }
    Ok(path)
}

fn is_mark(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(HIDDEN))
}

fn link_name(entry: &Entry<'_, impl Read>) -> Result<Vec<u8>, Failure> {
    let missing = || UnpackError::Archive(io::Error::new(io::ErrorKind::InvalidData, "a link has no target"));
    Ok(entry.link_name_bytes().ok_or_else(missing)?.into_owned())
}

fn marks(entry: &mut Entry<'_, impl Read>) -> Vec<(String, Vec<u8>)> {
    let Ok(Some(extensions)) = entry.pax_extensions() else { return Vec::new() };
    let kept = extensions.flatten().filter_map(|extension| {
        let name = extension.key().ok()?.strip_prefix("SCHILY.xattr.")?;
        let is_kept = KEPT_MARKS.iter().any(|prefix| name.starts_with(prefix));
        is_kept.then(|| (name.to_owned(), extension.value_bytes().to_vec()))
    });
    kept.collect()
}

fn set_marks(file: impl AsFd, marks: &[(String, Vec<u8>)]) -> rustix::io::Result<()> {
    for (name, value) in marks {
        match rustix::fs::fsetxattr(&file, name.as_str(), value, XattrFlags::empty()) {
            // The file system of the store may not support attributes that the author's file system does.
            Err(Errno::NOTSUP) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Sets the owner first, because changing it clears the set-uid bit.
fn finish(file: impl AsFd, meta: &Meta) -> rustix::io::Result<()> {
    if let Some((uid, gid)) = meta.owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    fchmod(&file, meta.mode)
}

fn own(parent: &OwnedFd, name: &std::ffi::OsStr, meta: &Meta) -> Result<(), Failure> {
    if let Some((uid, gid)) = meta.owner {
        chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(utimensat(parent, name, &times(meta.modified), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times(modified: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(modified).unwrap_or(i64::MAX), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests;
