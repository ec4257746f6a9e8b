//! Packs the layers of an overlay as a layer of an image: the opposite of [`crate::unpack`].
//!
//! Untrusted programs wrote the layers. So every file is opened relative to its directory, and no link is followed. The
//! same files always give the same bytes: entries are sorted by name, and times are whole seconds.

mod header;
mod merge;

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, readlinkat, statat};
use rustix::io::Errno;
use tar::EntryType;

use crate::unpack::{HIDDEN, KEPT_MARKS, OPAQUE, Quota, QuotaError};
use header::Headers;
use merge::{Found, merged};

/// Why layers were not packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// There are too many files, or no time or space for more.
    #[error("could not pack the files: {0}")]
    Quota(#[from] QuotaError),
    /// A directory is nested too deep.
    #[error("directories are nested more than {MAX_DEPTH} deep")]
    Depth,
    /// Images use this name to hide a file of a lower layer.
    #[error("{0:?} has a name that starts with .wh., which images reserve; rename the file")]
    Reserved(PathBuf),
    /// The directory refers to another one of a lower layer, which an archive cannot do.
    #[error("{0:?} was moved in a way that an image cannot express")]
    Redirect(PathBuf),
    /// A file could not be packed.
    #[error("could not pack {path:?}")]
    Entry {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// As deep as archives that are unpacked, and few enough for a thread's stack and for descriptors.
const MAX_DEPTH: usize = 200;
/// The limit on memory for the paths of hard-linked files. Links beyond it become separate files.
const MAX_LINKED_BYTES: usize = 32 << 20;
const MAX_ATTRIBUTES: usize = 64 << 10;
/// The key of an extended attribute in an archive, before its name.
const ATTRIBUTE: &str = "SCHILY.xattr.";

pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether there are other layers of the image below those that are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// No: there is nothing to hide.
    Nothing,
    /// Yes: what hides their files is part of the archive.
    Layers,
}

/// Writes a tar archive of what these layers, topmost first, show together.
///
/// # Errors
/// If a file cannot be read or expressed, the archive cannot be written, or the quota is exhausted.
pub fn pack(layers: &[&Path], below: Below, out: impl Write, quota: &Quota) -> Result<(), PackError> {
    let open = |path: &&Path| {
        let opened = openat(CWD, *path, DIRECTORY, Mode::empty());
        opened.map_err(|error| PackError::Entry { path: path.to_path_buf(), source: error.into() })
    };
    let roots: Vec<OwnedFd> = layers.iter().map(open).collect::<Result<_, _>>()?;
    let all: Vec<usize> = (0..roots.len()).collect();
    let archive = tar::Builder::new(out);
    let mut packer =
        Packer { archive, roots, below, quota, path: Vec::new(), depth: 0, linked: HashMap::new(), linked_bytes: 0 };
    packer.directory(&all)?;
    packer.archive.into_inner().and_then(|mut out| out.flush()).map_err(|source| failure(Path::new(""), source))
}

struct Packer<'a, W: Write> {
    archive: tar::Builder<W>,
    /// The layers, topmost first.
    roots: Vec<OwnedFd>,
    below: Below,
    quota: &'a Quota,
    /// From the root, separated by slashes.
    path: Vec<u8>,
    depth: usize,
    /// The first path of each hard-linked file, by device and inode.
    linked: HashMap<(u64, u64), Box<[u8]>>,
    linked_bytes: usize,
}

impl<W: Write> Packer<'_, W> {
    /// Packs what is in the current directory, which these layers have. Files come first, so that the descriptors of a
    /// directory are closed before its subdirectories are opened.
    fn directory(&mut self, layers: &[usize]) -> Result<(), PackError> {
        let parts: Vec<OwnedFd> = layers.iter().map(|layer| self.open(*layer)).collect::<Result<_, _>>()?;
        let entries = merged(&parts, self.quota).map_err(|error| self.failed(error))?;
        let mut subdirectories = Vec::new();
        for (name, found) in entries {
            match found {
                Found::Hidden => self.within(&name, |packer| packer.hide(name.to_bytes()))?,
                Found::Other(part) => self.within(&name, |packer| packer.file(&parts[part], &name))?,
                Found::Directory { parts: shown, hides } => subdirectories.push((name, shown, hides)),
            }
        }
        drop(parts);
        for (name, shown, hides) in subdirectories {
            let shown: Vec<usize> = shown.into_iter().map(|part| layers[part]).collect();
            self.within(&name, |packer| packer.subdirectory(&shown, hides))?;
        }
        Ok(())
    }

    fn within(&mut self, name: &CStr, pack: impl FnOnce(&mut Self) -> Result<(), PackError>) -> Result<(), PackError> {
        let length = self.path.len();
        self.enter(name)?;
        pack(self)?;
        self.path.truncate(length);
        self.depth -= 1;
        Ok(())
    }

    /// Opens the current directory in a layer.
    fn open(&self, layer: usize) -> Result<OwnedFd, PackError> {
        let path = if self.path.is_empty() { b".".as_slice() } else { &self.path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(&self.roots[layer], path, DIRECTORY, Mode::empty(), resolve).map_err(|error| self.failed_with(error))
    }

    fn enter(&mut self, name: &CStr) -> Result<(), PackError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(PackError::Depth);
        }
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        if name.to_bytes().starts_with(HIDDEN) {
            return Err(PackError::Reserved(self.shown_path()));
        }
        Ok(())
    }

    fn subdirectory(&mut self, layers: &[usize], hides: bool) -> Result<(), PackError> {
        let top = self.open(layers[0])?;
        let stat = rustix::fs::fstat(&top).map_err(|error| self.failed_with(error))?;
        let attributes = self.attributes(&top)?;
        let mut path = self.path.clone();
        path.push(b'/');
        let headers = Headers::new(EntryType::Directory, &path, &stat).with_attributes(&attributes);
        append(&mut self.archive, &headers, io::empty())?;
        if hides && self.below == Below::Layers {
            let mark = [&path[..], OPAQUE].concat();
            append(&mut self.archive, &Headers::mark(&mark), io::empty())?;
        }
        drop(top);
        self.directory(layers)
    }

    /// Adds the mark that hides a file of a lower layer.
    fn hide(&mut self, name: &[u8]) -> Result<(), PackError> {
        if self.below == Below::Nothing {
            return Ok(());
        }
        let parent = &self.path[..self.path.len() - name.len()];
        let mark = [parent, HIDDEN, name].concat();
        append(&mut self.archive, &Headers::mark(&mark), io::empty())
    }

    fn file(&mut self, parent: &OwnedFd, name: &CStr) -> Result<(), PackError> {
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| self.failed_with(error))?;
        let identity = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.linked.get(&identity)
        {
            let headers = Headers::new(EntryType::Link, &self.path, &stat).with_target(first);
            return append(&mut self.archive, &headers, io::empty());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.contents(parent, name)?,
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new()).map_err(|error| self.failed_with(error))?;
                let headers = Headers::new(EntryType::Symlink, &self.path, &stat).with_target(target.to_bytes());
                append(&mut self.archive, &headers, io::empty())?;
            }
            FileType::Fifo => {
                append(&mut self.archive, &Headers::new(EntryType::Fifo, &self.path, &stat), io::empty())?
            }
            // Layers have no sockets and no other devices.
            _ => return Ok(()),
        }
        if stat.st_nlink > 1 && self.linked_bytes + self.path.len() <= MAX_LINKED_BYTES {
            self.linked_bytes += self.path.len();
            self.linked.insert(identity, self.path.as_slice().into());
        }
        Ok(())
    }

    fn contents(&mut self, parent: &OwnedFd, name: &CStr) -> Result<(), PackError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(parent, name, flags, Mode::empty()).map_err(|error| self.failed_with(error))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| self.failed_with(error))?;
        let attributes = self.attributes(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let headers = Headers::new(EntryType::Regular, &self.path, &stat).with_attributes(&attributes).with_size(size);
        let mut contents = Contents { file: File::from(file), left: size, quota: self.quota };
        append(&mut self.archive, &headers, &mut contents)?;
        match contents.left {
            0 => Ok(()),
            // The header promised more, so the archive is damaged.
            _ => Err(self.failed_with(Errno::STALE)),
        }
    }

    /// The extended attributes that images keep, sorted.
    fn attributes(&self, file: &OwnedFd) -> Result<Vec<(String, Vec<u8>)>, PackError> {
        let mut list = vec![0; MAX_ATTRIBUTES];
        let length = match rustix::fs::flistxattr(file, &mut list) {
            Err(Errno::NOTSUP) => 0,
            other => other.map_err(|error| self.failed_with(error))?,
        };
        let mut names: Vec<&str> =
            list[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()).collect();
        if names.contains(&"trusted.overlay.redirect") {
            return Err(PackError::Redirect(self.shown_path()));
        }
        // In an archive, the first `=` ends the name.
        names.retain(|name| KEPT_MARKS.iter().any(|kept| name.starts_with(kept)) && !name.contains('='));
        names.sort_unstable();
        let read = |name: &str| {
            let mut value = vec![0; MAX_ATTRIBUTES];
            let length = rustix::fs::fgetxattr(file, name, &mut value).map_err(|error| self.failed_with(error))?;
            value.truncate(length);
            self.quota.take_bytes(length as u64)?;
            Ok((format!("{ATTRIBUTE}{name}"), value))
        };
        names.into_iter().map(read).collect()
    }

    fn shown_path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsStr::from_bytes(&self.path))
    }

    fn failed_with(&self, error: Errno) -> PackError {
        self.failed(error.into())
    }

    fn failed(&self, source: io::Error) -> PackError {
        failure(&self.shown_path(), source)
    }
}

fn append<W: Write>(
    archive: &mut tar::Builder<W>,
    headers: &Headers<'_>,
    contents: impl Read,
) -> Result<(), PackError> {
    let path = || Path::new(std::ffi::OsStr::from_bytes(headers.path()));
    headers.append_to(archive, contents).map_err(|error| failure(path(), error))
}

fn failure(path: &Path, source: io::Error) -> PackError {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<QuotaError>()) {
        Some(refused) => PackError::Quota(refused.clone()),
        None => PackError::Entry { path: path.to_owned(), source },
    }
}

/// The contents of a file, as much as its header says.
struct Contents<'a> {
    file: File,
    left: u64,
    quota: &'a Quota,
}

impl Read for Contents<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let length = self.file.read(&mut buffer[..most])?;
        self.quota.take_bytes(length as u64)?;
        self.left -= length as u64;
        Ok(length)
    }
}

/// Whether something hides what has its name in lower layers.
fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

#[cfg(test)]
mod tests;
