//! A directory of this host and everything below it. Every access starts at the open directory, never leaves it and
//! never follows a link: the directory may be shared with others, and names come from sandboxes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use isopod_files::FileSink;
use isopod_store::secrets::new_uuid;
use isopod_store::{FileFacts, FileHash};
use md5::Md5;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::rel_path::{RelPath, UNFINISHED};

/// An open directory.
#[derive(Debug)]
pub(crate) struct HostTree {
    root: OwnedFd,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Sorted by path.
    pub(crate) files: Vec<(RelPath, FileFacts)>,
    /// Entries that are not regular files, have a name that is not UTF-8, or could not be read, with the reason.
    pub(crate) others: Vec<(String, &'static str)>,
    pub(crate) truncated: bool,
}

/// The result of hashing a file.
#[derive(Debug)]
pub(crate) struct Hashed {
    pub(crate) hash: FileHash,
    /// For readers that do not support a better hash.
    pub(crate) md5: String,
    pub(crate) contents: Option<Bytes>,
    pub(crate) facts: FileFacts,
}

const MAX_DEPTH: usize = 64;
const CHUNK: usize = 256 << 10;

impl HostTree {
    /// Opens the directory. Creates it if necessary.
    pub(crate) fn ensure(path: &Path) -> io::Result<Self> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        create_directory(path)?;
        Self::open(path)
    }

    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self { root: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Lists everything below, at most `max` files.
    pub(crate) fn walk(&self, max: usize) -> io::Result<Walked> {
        let mut walked = Walked::default();
        let mut open = vec![(PathBuf::new(), 0)];
        while let Some((directory, depth)) = open.pop() {
            if depth > MAX_DEPTH {
                walked.others.push((directory.to_string_lossy().into_owned(), "too deep"));
                continue;
            }
            let entries = match self.directory(&directory) {
                Ok(entries) => entries,
                // A subdirectory may have been removed since it was listed, but not the root.
                Err(error) if directory.as_os_str().is_empty() => return Err(error),
                Err(_) => {
                    walked.others.push((directory.to_string_lossy().into_owned(), "cannot be read"));
                    continue;
                }
            };
            self.walk_one(&directory, depth, entries, max, &mut walked, &mut open)?;
            if walked.truncated {
                break;
            }
        }
        walked.files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(walked)
    }

    fn walk_one(
        &self,
        directory: &Path,
        depth: usize,
        mut entries: Dir,
        max: usize,
        walked: &mut Walked,
        open: &mut Vec<(PathBuf, usize)>,
    ) -> io::Result<()> {
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || name.to_bytes().starts_with(UNFINISHED.as_bytes()) {
                continue;
            }
            let path = directory.join(name.to_string_lossy().as_ref());
            let shown = path.to_string_lossy().into_owned();
            let Ok(stat) = statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            match FileType::from_raw_mode(stat.st_mode as RawMode) {
                FileType::Directory => open.push((path, depth + 1)),
                FileType::RegularFile => match RelPath::parse(&shown) {
                    _ if name.to_str().is_err() => walked.others.push((shown, "its name is not UTF-8")),
                    Err(_) => walked.others.push((shown, "its path is too long")),
                    Ok(_) if walked.files.len() == max => {
                        walked.truncated = true;
                        return Ok(());
                    }
                    Ok(path) => walked.files.push((path, facts_of(&stat))),
                },
                FileType::Symlink => walked.others.push((shown, "links are not followed")),
                _ => walked.others.push((shown, "it is not a regular file")),
            }
        }
        Ok(())
    }

    fn directory(&self, path: &Path) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Dir::new(self.beneath(path, flags)?)?)
    }

    fn beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // Non-blocking, so that a FIFO cannot hang us.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Ok(openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }

    /// Opens a regular file for reading.
    pub(crate) fn read(&self, path: &RelPath) -> io::Result<(File, FileFacts)> {
        let opened = self.beneath(path.as_path(), OFlags::RDONLY)?;
        let stat = rustix::fs::fstat(&opened)?;
        match FileType::from_raw_mode(stat.st_mode as RawMode) {
            FileType::RegularFile => Ok((opened.into(), facts_of(&stat))),
            FileType::Directory => Err(io::ErrorKind::IsADirectory.into()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The metadata of a regular file.
    pub(crate) fn facts(&self, path: &RelPath) -> io::Result<FileFacts> {
        self.read(path).map(|(_, facts)| facts)
    }

    /// The hashes of a file, and its contents if they have at most `keep` bytes.
    pub(crate) fn hash(&self, path: &RelPath, keep: u64) -> io::Result<Hashed> {
        let (mut file, facts) = self.read(path)?;
        let mut kept = (facts.size <= keep).then(Vec::new);
        let (mut hash, mut md5, mut buffer) = (Sha256::new(), Md5::new(), vec![0; CHUNK.min(size_hint(&facts))]);
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            md5.update(&buffer[..read]);
            // It may have grown since it was opened.
            if kept.as_ref().is_some_and(|kept| (kept.len() + read) as u64 > keep) {
                kept = None;
            }
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(&buffer[..read]);
            }
        }
        Ok(Hashed {
            hash: hash.finalize().into(),
            md5: hex::encode(md5.finalize()),
            contents: kept.map(Bytes::from),
            facts,
        })
    }

    /// Starts writing a file, which appears atomically. Creates its parent directories. With `sync`, the file is on disk
    /// under its name once it is finished.
    pub(crate) fn begin(&self, path: &RelPath, sync: bool) -> io::Result<NewHostFile> {
        let (directory, name) = path.split();
        let parent = self.ensure_directory(directory, sync)?;
        let unfinished = format!("{UNFINISHED}{}", new_uuid());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(openat(&parent, &unfinished, flags, Mode::from_raw_mode(0o600))?);
        Ok(NewHostFile { parent, unfinished, name: name.to_owned(), file, hash: Sha256::new(), sync })
    }

    /// Writes a file from memory.
    pub(crate) fn write_bytes(&self, path: &RelPath, sync: bool, contents: &[u8]) -> io::Result<(FileFacts, FileHash)> {
        let mut file = self.begin(path, sync)?;
        file.write(&Bytes::copy_from_slice(contents))?;
        file.finish()
    }

    /// Writes the contents of another file, and syncs them to disk.
    pub(crate) fn write_from(&self, path: &RelPath, source: File) -> io::Result<()> {
        self.begin_from(path, source)?.finish().map(drop)
    }

    /// Like [`Self::write_from`], but the file does not appear before it is finished.
    pub(crate) fn begin_from(&self, path: &RelPath, mut source: File) -> io::Result<NewHostFile> {
        let mut file = self.begin(path, true)?;
        let mut buffer = vec![0; CHUNK];
        loop {
            match source.read(&mut buffer)? {
                0 => return Ok(file),
                length => file.write(&Bytes::copy_from_slice(&buffer[..length]))?,
            }
        }
    }

    /// Removes a file. Returns whether it existed.
    pub(crate) fn remove(&self, path: &RelPath) -> io::Result<bool> {
        let (directory, name) = path.split();
        let parent = match self.beneath(Path::new(directory.unwrap_or(".")), OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            parent => parent?,
        };
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the directories above a removed file that are empty now.
    pub(crate) fn remove_empty_parents(&self, path: &RelPath) {
        let mut rest = path.split().0;
        while let Some(directory) = rest {
            let (above, name) =
                directory.rsplit_once('/').map_or((None, directory), |(above, name)| (Some(above), name));
            let parent = self.beneath(Path::new(above.unwrap_or(".")), OFlags::RDONLY | OFlags::DIRECTORY);
            // One that has other files stays, and so do those above it.
            if !parent.is_ok_and(|parent| unlinkat(&parent, name, AtFlags::REMOVEDIR).is_ok()) {
                return;
            }
            rest = above;
        }
    }

    fn ensure_directory(&self, path: Option<&str>, sync: bool) -> io::Result<OwnedFd> {
        let mut present = PathBuf::from(".");
        let mut opened = self.beneath(&present, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for name in path.into_iter().flat_map(|path| path.split('/')) {
            match rustix::fs::mkdirat(opened.as_fd(), name, Mode::from_raw_mode(0o700)) {
                Ok(()) if sync => sync_directory(&opened)?,
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            present.push(name);
            opened = self.beneath(&present, OFlags::RDONLY | OFlags::DIRECTORY)?;
        }
        Ok(opened)
    }
}

/// A file that is being written. It is removed if it is dropped before it is finished.
#[derive(Debug)]
pub(crate) struct NewHostFile {
    parent: OwnedFd,
    /// Its name until it is complete.
    unfinished: String,
    name: String,
    file: File,
    hash: Sha256,
    sync: bool,
}

impl FileSink for NewHostFile {
    type Done = (FileFacts, FileHash);
    type Error = io::Error;

    fn write(&mut self, piece: &Bytes) -> io::Result<()> {
        self.hash.update(piece);
        self.file.write_all(piece)
    }

    fn finish(mut self) -> io::Result<(FileFacts, FileHash)> {
        if self.sync {
            self.file.sync_all()?;
        }
        renameat(&self.parent, &self.unfinished, &self.parent, &self.name)?;
        if self.sync {
            sync_directory(&self.parent)?;
        }
        let facts = facts_of(&rustix::fs::fstat(&self.file)?);
        Ok((facts, std::mem::take(&mut self.hash).finalize().into()))
    }
}

impl Drop for NewHostFile {
    fn drop(&mut self) {
        // A finished file no longer has this name. A leftover is hidden and is removed with the directory.
        let _ = unlinkat(&self.parent, &self.unfinished, AtFlags::empty());
    }
}

/// Creates a directory and those above it, whose names survive a power failure.
fn create_directory(path: &Path) -> io::Result<()> {
    let create = || rustix::fs::mkdir(path, Mode::from_raw_mode(0o700));
    let parent = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let created = match create() {
        Err(Errno::NOENT) => {
            create_directory(parent)?;
            create()
        }
        created => created,
    };
    match created {
        Ok(()) => sync_directory(&rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the names in a directory to disk, which a sync of the files leaves in memory.
fn sync_directory(directory: &OwnedFd) -> io::Result<()> {
    match rustix::fs::fsync(directory) {
        // Some file systems, which the operator may have mounted here, sync only files.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A buffer that holds the whole file, so that the next read shows its end.
fn size_hint(facts: &FileFacts) -> usize {
    usize::try_from(facts.size).unwrap_or(usize::MAX).saturating_add(1).max(512)
}

fn facts_of(stat: &rustix::fs::Stat) -> FileFacts {
    let nanos = |seconds: i64, nanos: u64| {
        seconds.saturating_mul(1_000_000_000).saturating_add(i64::try_from(nanos).unwrap_or(0))
    };
    FileFacts {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: nanos(stat.st_mtime, stat.st_mtime_nsec),
        changed: nanos(stat.st_ctime, stat.st_ctime_nsec),
        inode: stat.st_ino,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    fn tree() -> (tempfile::TempDir, HostTree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = HostTree::ensure(&dir.path().join("a/b")).unwrap();
        (dir, tree)
    }

    #[test]
    fn what_is_written_is_found_read_and_removed() {
        let (_dir, tree) = tree();
        let (facts, hash) = tree.write_bytes(&path("x/y/z.txt"), true, b"hello").unwrap();
        assert_eq!(facts.size, 5);
        let walked = tree.walk(10).unwrap();
        assert_eq!(walked.files, [(path("x/y/z.txt"), tree.facts(&path("x/y/z.txt")).unwrap())]);
        let again = tree.hash(&path("x/y/z.txt"), 100).unwrap();
        assert_eq!((again.hash, again.contents.unwrap().as_ref()), (hash, b"hello".as_slice()));
        assert_eq!(again.md5, "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(tree.hash(&path("x/y/z.txt"), 1).unwrap().hash, hash, "without keeping it");
        assert!(tree.remove(&path("x/y/z.txt")).unwrap() && !tree.remove(&path("x/y/z.txt")).unwrap());
        assert!(!tree.remove(&path("none/there")).unwrap());
    }

    #[test]
    fn empty_directories_above_a_removed_file_go_and_others_stay() {
        let (dir, tree) = tree();
        for name in ["x/y/z/one", "x/two"] {
            tree.write_bytes(&path(name), true, b"").unwrap();
        }
        tree.remove_empty_parents(&path("x/y/z/one"));
        assert!(dir.path().join("a/b/x/y/z/one").is_file(), "nothing was empty");
        tree.remove(&path("x/y/z/one")).unwrap();
        tree.remove_empty_parents(&path("x/y/z/one"));
        assert!(!dir.path().join("a/b/x/y").exists() && dir.path().join("a/b/x/two").is_file());
    }

    #[test]
    fn a_copy_has_its_name_only_when_it_is_finished() {
        let (_dir, tree) = tree();
        tree.write_bytes(&path("from"), true, b"new").unwrap();
        tree.write_bytes(&path("to"), true, b"old").unwrap();
        let copy = tree.begin_from(&path("to"), tree.read(&path("from")).unwrap().0).unwrap();
        assert_eq!(tree.hash(&path("to"), 10).unwrap().contents.unwrap().as_ref(), b"old");
        copy.finish().unwrap();
        assert_eq!(tree.hash(&path("to"), 10).unwrap().contents.unwrap().as_ref(), b"new");
    }

    #[test]
    fn links_lead_nowhere_and_pipes_do_not_hang() {
        let (dir, tree) = tree();
        let root = dir.path().join("a/b");
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), root.join("file")).unwrap();
        std::os::unix::fs::symlink(dir.path(), root.join("out")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(tree.read(&path("file")).is_err() && tree.read(&path("out/secret")).is_err());
        assert!(tree.read(&path("pipe")).is_err());
        assert!(tree.write_bytes(&path("out/new"), false, b"x").is_err());
        assert!(!dir.path().join("new").exists());
        let walked = tree.walk(10).unwrap();
        assert!(walked.files.is_empty() && walked.others.len() == 3, "{walked:?}");
        // Writing to the name of a link replaces the link and not its target.
        tree.write_bytes(&path("file"), false, b"mine").unwrap();
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"s");
    }

    #[test]
    fn a_write_that_is_given_up_leaves_what_was_there() {
        let (dir, tree) = tree();
        tree.write_bytes(&path("f"), false, b"old").unwrap();
        let mut half = tree.begin(&path("f"), false).unwrap();
        half.write(&Bytes::from_static(b"half")).unwrap();
        drop(half);
        assert_eq!(tree.hash(&path("f"), 10).unwrap().contents.unwrap().as_ref(), b"old");
        assert_eq!(tree.walk(10).unwrap().files.len(), 1);
        assert_eq!(std::fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1, "nothing hidden is left either");
    }

    #[test]
    fn a_walk_that_finds_too_much_says_so() {
        let (_dir, tree) = tree();
        for n in 0..5 {
            tree.write_bytes(&path(&n.to_string()), false, b"").unwrap();
        }
        assert!(tree.walk(4).unwrap().truncated && !tree.walk(5).unwrap().truncated);
    }
}
