//! The context of a Dockerfile build: a tar archive of a client's, unpacked into a directory of the server's.
//!
//! Nothing in the archive is trusted. Only files, directories and symbolic links are taken, only below the directory, and
//! nothing is ever written through a link: links are made last, when all files are there.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    #[error("the context is not a tar archive: {0}")]
    Format(io::Error),
    #[error("the context has {0:?}, which is not below its top")]
    Outside(String),
    #[error("the context has {0:?} twice")]
    Twice(String),
    #[error("the context has {0:?}, which is neither a file, a directory nor a link")]
    Kind(String),
    #[error("the context is larger than {0} bytes when unpacked")]
    TooLarge(u64),
    #[error("the context has more than {MOST_ENTRIES} entries")]
    TooMany,
    #[error("could not keep {}", path.display())]
    Disk { path: PathBuf, source: io::Error },
}

const MOST_ENTRIES: usize = 500_000;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Unpacks an archive, perhaps compressed with gzip, into a new directory. On an error the directory is gone again.
pub(crate) fn unpack_context(archive: &Path, into: &Path, most: u64) -> Result<(), ContextError> {
    let unpacked = open(archive).and_then(|reader| unpack(Archive::new(reader), into, most));
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

fn unpack(mut archive: Archive<Box<dyn Read>>, into: &Path, most: u64) -> Result<(), ContextError> {
    make_dir(into)?;
    let (mut links, mut left, mut count) = (Vec::new(), most, 0_usize);
    for entry in archive.entries().map_err(ContextError::Format)? {
        let mut entry = entry.map_err(ContextError::Format)?;
        count += 1;
        if count > MOST_ENTRIES {
            return Err(ContextError::TooMany);
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let place = into.join(below(&entry, &name)?);
        match entry.header().entry_type() {
            EntryType::Directory => make_dir(&place)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                left = left.checked_sub(entry.size()).ok_or(ContextError::TooLarge(most))?;
                write_file(&mut entry, &place, &name)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(ContextError::Format)?;
                links.push((place, target.ok_or(ContextError::Kind(name))?.into_owned()));
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(ContextError::Kind(name)),
        }
    }
    for (place, target) in links {
        make_parent(&place)?;
        symlink(&target, &place).map_err(disk(&place))?;
    }
    Ok(())
}

/// The path below the top, without a single part that could leave it.
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
    Ok(clean)
}

fn write_file<R: Read>(entry: &mut Entry<'_, R>, place: &Path, name: &str) -> Result<(), ContextError> {
    make_parent(place)?;
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode | 0o600).open(place);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(ContextError::Twice(name.to_owned()));
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

    /// Written by hand where the writer of the library would refuse the name.
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

    fn unpacked(bytes: &[u8], most: u64) -> (tempfile::TempDir, Result<(), ContextError>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("context.tar");
        std::fs::write(&file, bytes).unwrap();
        let result = unpack_context(&file, &dir.path().join("into"), most);
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
