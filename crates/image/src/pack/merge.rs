//! What several directories of an overlay show together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, openat, statat};
use rustix::io::Errno;

use super::{DIRECTORY, is_whiteout};
use crate::unpack::{OPAQUE_MARK, Quota};

/// What has a name. Numbers are those of the directories that have it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, and nothing of lower layers either.
    Hidden,
    /// Anything but a directory.
    Other(usize),
    /// A directory: those that it is made of, topmost first.
    Directory {
        parts: Vec<usize>,
        /// Whether it hides what lower layers have there.
        hides: bool,
    },
}

/// The entries of directories of the same path, topmost first, sorted by name.
pub(super) fn merged(parts: &[OwnedFd], quota: &Quota) -> io::Result<BTreeMap<Box<CStr>, Found>> {
    let mut entries: BTreeMap<Box<CStr>, Found> = BTreeMap::new();
    for (part, directory) in parts.iter().enumerate() {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            quota.take_entry()?;
            let below = look_at(directory, name)?;
            match entries.entry(name.into()) {
                Entry::Vacant(vacant) => drop(vacant.insert(below.alone(part))),
                Entry::Occupied(mut above) => above.get_mut().add(part, below),
            }
        }
    }
    Ok(entries)
}

/// What one directory has under a name.
enum Kind {
    Whiteout,
    Other,
    Directory { is_opaque: bool },
}

impl Kind {
    fn alone(self, part: usize) -> Found {
        match self {
            Self::Whiteout => Found::Hidden,
            Self::Other => Found::Other(part),
            Self::Directory { is_opaque } => Found::Directory { parts: vec![part], hides: is_opaque },
        }
    }
}

impl Found {
    /// Adds what a lower directory has under the same name. Only directories show something of it.
    fn add(&mut self, part: usize, below: Kind) {
        let Self::Directory { parts, hides } = self else { return };
        if *hides {
            return;
        }
        match below {
            Kind::Directory { is_opaque } => {
                parts.push(part);
                *hides = is_opaque;
            }
            Kind::Whiteout | Kind::Other => *hides = true,
        }
    }
}

fn look_at(directory: &OwnedFd, name: &CStr) -> io::Result<Kind> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if is_whiteout(&stat) {
        return Ok(Kind::Whiteout);
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(Kind::Other);
    }
    let inner = openat(directory, name, DIRECTORY, Mode::empty())?;
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(&inner, OPAQUE_MARK, &mut value) {
        Ok(length) => Ok(Kind::Directory { is_opaque: value[..length] == *b"y" }),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(Kind::Directory { is_opaque: false }),
        Err(error) => Err(error.into()),
    }
}
