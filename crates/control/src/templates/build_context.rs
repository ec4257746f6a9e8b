//! The context of a Dockerfile build: a client's tar archive, unpacked into a directory of the server.
//!
//! Nothing in the archive is trusted. Only files, directories and symbolic links below the directory are accepted.
//! Nothing is ever written through a link: links are created last, after all files, and no link is created through an
//! earlier one.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::ledger::TeamFull;

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    #[error("the context is not a tar archive: {0}")]
    Format(io::Error),
    #[error("the context contains {0:?}, which is outside of its root")]
    Outside(String),
    #[error("the context contains {0:?} twice")]
    Duplicate(String),
    #[error("the context contains {0:?}, which is not a file, directory or link")]
    Kind(String),
    #[error("the context is larger than {0} bytes when unpacked")]
    TooLarge(u64),
    #[error(transparent)]
    TeamFull(#[from] TeamFull),
    #[error("the context has more than {MAX_ENTRIES} entries")]
    TooMany,
    #[error("the names and targets of the context's links have more than {MAX_LINK_BYTES} bytes")]
    Links,
    #[error("the context has directories nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("could not store {}", path.display())]
    Disk { path: PathBuf, source: io::Error },
}

const MAX_ENTRIES: usize = 500_000;
/// Deeper than any real context. Removing a tree needs stack space and a descriptor for every level.
const MAX_DEPTH: usize = 200;
/// The size that an entry counts in addition to its content.
const ENTRY_BYTES: u64 = 512;
/// The maximum size of what precedes an entry: its header, a long name, a long target, extended attributes.
const MAX_HEADERS: u64 = 1 << 20;
/// The maximum size of all links. They wait in memory until all files are written, and a few compressed kilobytes may
/// contain gigabytes of link names.
const MAX_LINK_BYTES: usize = 64 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Takes bytes from the team's quota.
pub(crate) type TakeBytes<'t> = &'t dyn Fn(u64) -> Result<(), TeamFull>;

/// Unpacks an archive, optionally compressed with gzip, into a new directory. Everything is taken from the team's quota
/// before it is written. On an error, the directory is removed.
pub(crate) fn unpack_context(archive: &Path, into: &Path, limit: u64, take: TakeBytes<'_>) -> Result<(), ContextError> {
    let unpacked = open(archive).and_then(|reader| unpack(reader, into, limit, take));
    if unpacked.is_err() {
        let _ = std::fs::remove_dir_all(into);
    }
    unpacked
}

fn open(archive: &Path) -> Result<Box<dyn Read>, ContextError> {
    let file = File::open(archive).map_err(disk(archive))?;
    let mut reader = BufReader::new(file);
    let start = io::BufRead::fill_buf(&mut reader).map_err(disk(archive))?;
    Ok(if start.starts_with(&GZIP) { Box::new(MultiGzDecoder::new(reader)) } else { Box::new(reader) })
}

fn unpack(reader: Box<dyn Read>, into: &Path, limit: u64, take: TakeBytes<'_>) -> Result<(), ContextError> {
    make_dir(into)?;
    let (mut links, mut left, mut count, mut link_bytes) = (Vec::new(), limit, 0_usize, 0);
    let allowance = Rc::new(Cell::new(MAX_HEADERS));
    let mut archive = Archive::new(Metered { inner: reader, allowance: Rc::clone(&allowance) });
    let mut entries = archive.entries().map_err(ContextError::Format)?;
    loop {
        allowance.set(MAX_HEADERS);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(ContextError::Format)?;
        count += 1;
        if count > MAX_ENTRIES {
            return Err(ContextError::TooMany);
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = below(&entry, &name)?;
        left = left.checked_sub(entry.size()).ok_or(ContextError::TooLarge(limit))?;
        take(entry.size().saturating_add(ENTRY_BYTES))?;
        allowance.set(u64::MAX);
        match entry.header().entry_type() {
            EntryType::Directory => make_dir(&into.join(path))?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                write_file(&mut entry, &into.join(path), &name)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(ContextError::Format)?;
                let target = target.ok_or_else(|| ContextError::Kind(name.clone()))?.into_owned();
                link_bytes += name.len() + path.as_os_str().len() + target.as_os_str().len();
                if link_bytes > MAX_LINK_BYTES {
                    return Err(ContextError::Links);
                }
                links.push(Link { name, path, target });
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(ContextError::Kind(name)),
        }
        // Skip the rest of the entry, which must not count as headers of the next one.
        io::copy(&mut entry, &mut io::sink()).map_err(ContextError::Format)?;
    }
    let top: OwnedFd = File::open(into).map_err(disk(into))?.into();
    links.iter().try_for_each(|link| link.make(&top))
}

/// A reader with a limit. The library reads long names and extended headers into memory as a whole, and a few
/// compressed kilobytes may contain gigabytes of them.
struct Metered<R> {
    inner: R,
    /// How much may be read now. Set while unpacking: a little for headers, anything for content.
    allowance: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let allowed = usize::try_from(self.allowance.get()).unwrap_or(usize::MAX).min(buffer.len());
        if allowed == 0 && !buffer.is_empty() {
            let message = format!("the headers of an entry have more than {MAX_HEADERS} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let read = self.inner.read(&mut buffer[..allowed])?;
        self.allowance.set(self.allowance.get() - read as u64);
        Ok(read)
    }
}

/// A symbolic link that will be created later.
struct Link {
    /// Its name in the archive.
    name: String,
    path: PathBuf,
    target: PathBuf,
}

impl Link {
    /// Creates the link. Descends from the root, one directory at a time, and never through a link.
    fn make(&self, top: &OwnedFd) -> Result<(), ContextError> {
        let outside = || ContextError::Outside(self.name.clone());
        let failed = |errno: Errno| disk(&self.path)(errno.into());
        let name = self.path.file_name().ok_or_else(outside)?;
        let mut parent = top.try_clone().map_err(disk(&self.path))?;
        for part in self.path.parent().into_iter().flat_map(Path::components) {
            match mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            parent = match openat(&parent, part.as_os_str(), flags, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(outside()),
                opened => opened.map_err(failed)?,
            };
        }
        match symlinkat(&self.target, &parent, name) {
            Err(Errno::EXIST) => Err(ContextError::Duplicate(self.name.clone())),
            made => made.map_err(failed),
        }
    }
}

/// Returns the path below the root, without any component that could leave it.
fn below<R: Read>(entry: &Entry<'_, R>, name: &str) -> Result<PathBuf, ContextError> {
    let path = entry.path().map_err(ContextError::Format)?;
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            _ => return Err(ContextError::Outside(name.to_owned())),
        }
    }
    if clean.components().count() > MAX_DEPTH {
        return Err(ContextError::TooDeep);
    }
    Ok(clean)
}

fn write_file<R: Read>(entry: &mut Entry<'_, R>, place: &Path, name: &str) -> Result<(), ContextError> {
    make_parent(place)?;
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode | 0o600).open(place);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(ContextError::Duplicate(name.to_owned()));
        }
        opened => opened.map_err(disk(place))?,
    };
    io::copy(entry, &mut file).map_err(disk(place))?;
    Ok(())
}

fn make_parent(place: &Path) -> Result<(), ContextError> {
    place.parent().map_or(Ok(()), make_dir)
}

fn make_dir(place: &Path) -> Result<(), ContextError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(place).map_err(disk(place))
}

fn disk(path: &Path) -> impl FnOnce(io::Error) -> ContextError {
    let path = path.to_owned();
    move |source| ContextError::Disk { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by hand, because the library refuses such names.
    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_size(0);
            if *kind == EntryType::Regular {
                header.set_size(content.len() as u64);
            } else if *kind == EntryType::Symlink || *kind == EntryType::Link {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_cksum();
            let data = if *kind == EntryType::Regular { content.as_bytes() } else { &[] };
            builder.append(&header, data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(bytes: &[u8], limit: u64) -> (tempfile::TempDir, Result<(), ContextError>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("context.tar");
        std::fs::write(&file, bytes).unwrap();
        let result = unpack_context(&file, &dir.path().join("into"), limit, &|_| Ok(()));
        (dir, result)
    }

    #[test]
    fn what_leaves_the_directory_is_refused_and_nothing_stays() {
        let file = EntryType::Regular;
        let bad: [&[(&str, EntryType, &str)]; 7] = [
            &[("../evil", file, "x")],
            &[("/etc/evil", file, "x")],
            &[("a/../../evil", file, "x")],
            &[("dev", EntryType::Char, "")],
            &[("hard", EntryType::Link, "/etc/passwd")],
            &[("a", file, "1"), ("a", file, "2")],
            &[("large", file, "more than eight")],
        ];
        for entries in bad {
            let (dir, result) = unpacked(&archive(entries), 8);
            assert!(result.is_err(), "{entries:?}");
            assert!(!dir.path().join("into").exists() && !dir.path().join("evil").exists(), "{entries:?}");
        }
        assert!(unpacked(b"this is no archive at all, is it", 100).1.is_err());
    }

    #[test]
    fn names_without_end_are_refused() {
        let long = |name: String, target: String| {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            for number in 0..70 {
                builder.append_link(&mut header, format!("{number}{name}"), &target).unwrap();
            }
            builder.into_inner().unwrap()
        };
        let (dir, result) = unpacked(&long("/a".repeat(5000), "x".to_owned()), 100);
        assert!(matches!(result, Err(ContextError::TooDeep)), "{result:?}");
        assert!(!dir.path().join("into").exists());
        let (_, result) = unpacked(&long(String::new(), "x".repeat(1_000_000)), 100);
        assert!(matches!(result, Err(ContextError::Links)), "{result:?}");
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().to_str().unwrap();
        let (dir, result) =
            unpacked(&archive(&[("out", EntryType::Symlink, target), ("out/file", EntryType::Regular, "x")]), 100);
        assert!(result.is_err(), "the name of the link is taken by a directory");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        drop(dir);
    }

    #[test]
    fn headers_without_end_are_refused() {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(8 * MAX_HEADERS);
        header.set_cksum();
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut zipped, header.as_bytes()).unwrap();
        io::copy(&mut io::repeat(b'a').take(8 * MAX_HEADERS), &mut zipped).unwrap();
        io::Write::write_all(&mut zipped, &archive(&[("a", EntryType::Regular, "x")])).unwrap();
        let (_dir, result) = unpacked(&zipped.finish().unwrap(), 100);
        let told = result.unwrap_err().to_string();
        assert!(told.contains("headers"), "{told}");
    }

    #[test]
    fn no_link_is_made_through_another() {
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().to_str().unwrap();
        let link = EntryType::Symlink;
        for below in ["out/evil", "out/made/evil"] {
            let (dir, result) = unpacked(&archive(&[("out", link, target), (below, link, "x")]), 100);
            assert!(matches!(result, Err(ContextError::Outside(_))), "{below}: {result:?}");
            assert!(!dir.path().join("into").exists());
            assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "{below}");
        }
        assert!(matches!(
            unpacked(&archive(&[("a", link, "x"), ("a", link, "y")]), 100).1,
            Err(ContextError::Duplicate(_))
        ));
    }

    #[test]
    fn files_keep_their_rights_and_links_their_targets() {
        use std::os::unix::fs::PermissionsExt as _;
        let tar = archive(&[("a/b.sh", EntryType::Regular, "run"), ("a/c", EntryType::Symlink, "../../b.sh")]);
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut zipped, &tar).unwrap();
        for bytes in [tar, zipped.finish().unwrap()] {
            let (dir, result) = unpacked(&bytes, 100);
            result.unwrap();
            let into = dir.path().join("into");
            assert_eq!(std::fs::read_to_string(into.join("a/b.sh")).unwrap(), "run");
            assert_eq!(std::fs::metadata(into.join("a/b.sh")).unwrap().permissions().mode() & 0o777, 0o755);
            assert_eq!(std::fs::read_link(into.join("a/c")).unwrap(), Path::new("../../b.sh"));
        }
    }
}
