//! A directory of this machine and what is below it, by its descriptor. The kernel keeps every access below it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// An open directory.
#[derive(Debug)]
pub(in crate::commands) struct HostTree {
    root: OwnedFd,
    path: PathBuf,
}

/// What a name in a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostKind {
    File,
    Directory,
    Link,
    Other,
}

/// A file that is being written. It takes its place when it is complete, and is removed if it never is.
#[derive(Debug)]
pub(super) struct NewFile {
    directory: OwnedFd,
    temporary: String,
    name: String,
    pub(super) file: Option<File>,
}

impl HostTree {
    /// Opens a directory that the caller named. Links in its own path are followed.
    pub(in crate::commands) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The parent of a plain name.
        let named = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Self { root: rustix::fs::open(named, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// Opens it, and makes it and those above it if need be.
    pub(in crate::commands) fn ensure(path: &Path) -> io::Result<Self> {
        if !path.as_os_str().is_empty() {
            std::fs::create_dir_all(path)?;
        }
        Self::open(path)
    }

    /// A directory below, made if need be.
    pub(in crate::commands) fn below(&self, below: &Path) -> io::Result<Self> {
        self.make_directory(below)?;
        Ok(Self { root: self.directory(below)?, path: self.shown(below) })
    }

    /// How to name something to people.
    pub(super) fn shown(&self, below: &Path) -> PathBuf {
        self.path.join(below)
    }

    /// Names and kinds in a directory below. Links are not followed.
    pub(super) fn list(&self, below: &Path) -> io::Result<Vec<(std::ffi::OsString, HostKind)>> {
        use std::os::unix::ffi::OsStringExt as _;
        let directory = self.directory(below)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => HostKind::File,
                FileType::Directory => HostKind::Directory,
                FileType::Symlink => HostKind::Link,
                _ => HostKind::Other,
            };
            entries.push((std::ffi::OsString::from_vec(name.to_bytes().to_vec()), kind));
        }
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(entries)
    }

    /// Opens a file. Links are followed as long as they stay below; an error of kind `CrossesDevices` says that one does not.
    pub(super) fn file(&self, below: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.root, below, flags, Mode::empty(), resolve)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
        }
    }

    /// Makes a directory unless it is there. A link in its place is an error, wherever it leads.
    pub(super) fn make_directory(&self, below: &Path) -> io::Result<()> {
        let (parent, name) = self.place(below)?;
        match mkdirat(&parent, &name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.directory(below).map(drop)
    }

    /// Begins to write a file.
    pub(super) fn new_file(&self, below: &Path) -> io::Result<NewFile> {
        let (directory, name) = self.place(below)?;
        let temporary = format!(".{:.100}.isopod-{}", name, std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &temporary, flags, Mode::from_raw_mode(0o666))?;
        Ok(NewFile { directory, temporary, name, file: Some(File::from(file)) })
    }

    /// Whether a link stands there that leads, inside the tree, to what the new file holds.
    pub(super) fn has_through_link(&self, below: &Path, new: &NewFile) -> io::Result<bool> {
        let stat = statat(&new.directory, &new.name, AtFlags::SYMLINK_NOFOLLOW);
        if !stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            return Ok(false);
        }
        let Ok(there) = self.file(below) else { return Ok(false) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let ours = File::from(rustix::fs::openat(&new.directory, &new.temporary, flags, Mode::empty())?);
        is_same(there, ours)
    }

    fn directory(&self, below: &Path) -> io::Result<OwnedFd> {
        if below.as_os_str().is_empty() {
            return self.root.as_fd().try_clone_to_owned().and_then(reopen);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.root, below, flags, Mode::empty(), resolve).map_err(|error| match error {
            Errno::LOOP => io::Error::new(io::ErrorKind::InvalidInput, "there is a link in its place"),
            error => error.into(),
        })
    }

    fn place(&self, below: &Path) -> io::Result<(OwnedFd, String)> {
        let name = below.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it has no name"))?;
        Ok((self.directory(below.parent().unwrap_or(Path::new("")))?, name.to_owned()))
    }
}

/// A descriptor of its own, so that reading a directory twice begins at its beginning.
fn reopen(directory: OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&directory, ".", flags, Mode::empty())?)
}

fn is_same(one: File, other: File) -> io::Result<bool> {
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (BufReader::new(one), BufReader::new(other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 || left[..length] != right[..length] {
            return Ok(left.is_empty() && right.is_empty());
        }
        one.consume(length);
        other.consume(length);
    }
}

impl NewFile {
    /// Puts it into its place. A link that stands there is replaced, not followed.
    pub(super) fn keep(mut self) -> io::Result<()> {
        renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.temporary.clear();
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            // The copy has failed, which is what people are told.
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_nowhere_outside() {
        let top = tempfile::tempdir().unwrap();
        let (tree, outside) = (top.path().join("tree"), top.path().join("outside"));
        for path in [tree.join("d"), outside.clone()] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(outside.join("secret"), "secret").unwrap();
        std::fs::write(tree.join("d/own"), "own").unwrap();
        symlink("../../outside/secret", tree.join("d/k")).unwrap();
        symlink(outside.join("secret"), tree.join("absolute")).unwrap();
        symlink("d/own", tree.join("near")).unwrap();
        symlink("../outside", tree.join("out")).unwrap();
        let host = HostTree::open(&tree).unwrap();

        assert_eq!(io::read_to_string(host.file(Path::new("near")).unwrap()).unwrap(), "own");
        for name in ["d/k", "absolute", "out/secret"] {
            let error = host.file(Path::new(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices, "{name}: {error}");
        }
        assert!(host.make_directory(Path::new("out")).is_err());
        assert!(host.make_directory(Path::new("out/new")).is_err());
        assert!(host.new_file(Path::new("out/new")).is_err());
        let mut new = host.new_file(Path::new("absolute")).unwrap();
        new.file.as_mut().unwrap().write_all(b"new").unwrap();
        new.keep().unwrap();
        assert_eq!(std::fs::read_to_string(tree.join("absolute")).unwrap(), "new");
        drop(host.new_file(Path::new("d/unfinished")).unwrap());
        assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "secret");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        let names: Vec<_> = host.list(Path::new("d")).unwrap();
        assert_eq!(names, [("k".into(), HostKind::Link), ("own".into(), HostKind::File)]);
    }
}
