//! Turning the writable layer of a stopped sandbox into a layer that others stand on.
//!
//! It is copied, not moved: the writable layers live on a file system with limits, kept layers beside the state. What
//! was written there was written by programs that nobody trusts, so no link is followed, and of the marks that overlays
//! understand only those come along that hide files of the layers below.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, Uid, XattrFlags, openat,
};
use rustix::io::Errno;

use super::layer::{KeptLayer, LayerError, begin_making};

/// Why a layer was not kept. Nothing is left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("could not copy {path}")]
    Copy {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// Extended attributes that come along. Others of overlays tell about files that are not in the copy.
const KEPT_TRUSTED: &[&str] = &["trusted.overlay.opaque", "trusted.overlay.redirect"];
const KEPT_PREFIXES: &[&str] = &["user.", "security.capability", "system.posix_acl_"];

/// Made anew in every sandbox, or gone when it ends.
const LEFT_OUT: &[&str] = &["etc/resolv.conf", "tmp", "run", "dev", "proc", "sys"];

/// Copies a writable layer and gives the copy a name. When somebody else has made it meanwhile, theirs is taken.
pub(crate) fn keep_area(area: &Path, templates: &Path, id: &str) -> Result<KeptLayer, KeepError> {
    let making = begin_making(templates, id)?;
    let copied = ["root", "usr"].into_iter().try_for_each(|part| {
        let left_out = if part == "root" { LEFT_OUT } else { &[] };
        copy_tree(&area.join(part), &making.directory.join(part), left_out)
    });
    match copied {
        Ok(()) => Ok(making.publish(templates, id)?),
        Err(error) => {
            making.give_up();
            Err(error)
        }
    }
}

fn copy_tree(from: &Path, to: &Path, left_out: &[&str]) -> Result<(), KeepError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: Errno| KeepError::Copy { path, source: error.into() }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(CWD, from, flags, Mode::empty()).map_err(failed(from))?;
    rustix::fs::mkdir(to, Mode::RWXU).map_err(failed(to))?;
    let target = openat(CWD, to, flags, Mode::empty()).map_err(failed(to))?;
    let mut copy = Copy { left_out, linked: HashMap::new(), root: &target };
    copy.directory(&source, &target, "")?;
    copy.finish(&source, &target).map_err(failed(to))
}

struct Copy<'a> {
    left_out: &'a [&'a str],
    /// The first name of files that have several.
    linked: HashMap<u64, String>,
    root: &'a OwnedFd,
}

impl Copy<'_> {
    fn directory(&mut self, source: &OwnedFd, target: &OwnedFd, path: &str) -> Result<(), KeepError> {
        let failed = |error: Errno| KeepError::Copy { path: path.to_owned(), source: error.into() };
        for entry in Dir::read_from(source).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let below = match path {
                "" => name.to_string_lossy().into_owned(),
                _ => format!("{path}/{}", name.to_string_lossy()),
            };
            if self.left_out.contains(&below.as_str()) {
                continue;
            }
            let stat = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            let copied = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    self.subdirectory(source, target, name, &below)?;
                    Ok(())
                }
                FileType::RegularFile => self.file(source, target, name, &stat, &below),
                FileType::Symlink => symlink(source, target, name, &stat),
                // Of devices only the mark that hides a file of a lower layer.
                FileType::CharacterDevice if stat.st_rdev == 0 => {
                    rustix::fs::mknodat(target, name, FileType::CharacterDevice, Mode::empty(), 0)
                }
                FileType::Fifo => rustix::fs::mknodat(target, name, FileType::Fifo, mode(&stat), 0)
                    .and_then(|()| own(target, name, &stat)),
                _ => Ok(()),
            };
            copied.map_err(|error| KeepError::Copy { path: below, source: error.into() })?;
        }
        Ok(())
    }

    fn subdirectory(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        name: &std::ffi::CStr,
        path: &str,
    ) -> Result<(), KeepError> {
        let failed = |error: Errno| KeepError::Copy { path: path.to_owned(), source: error.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = openat(source, name, flags, Mode::empty()).map_err(failed)?;
        rustix::fs::mkdirat(target, name, Mode::RWXU).map_err(failed)?;
        let target = openat(target, name, flags, Mode::empty()).map_err(failed)?;
        self.directory(&source, &target, path)?;
        // Last: writing into it changed its time.
        self.finish(&source, &target).map_err(failed)
    }

    fn file(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        name: &std::ffi::CStr,
        stat: &Stat,
        path: &str,
    ) -> rustix::io::Result<()> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.st_ino) {
                return rustix::fs::linkat(self.root, first.as_str(), target, name, AtFlags::empty());
            }
            self.linked.insert(stat.st_ino, path.to_owned());
        }
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = openat(source, name, read, Mode::empty())?;
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(target, name, write, Mode::RUSR | Mode::WUSR)?;
        let (mut reader, mut writer) = (File::from(from), File::from(to));
        io::copy(&mut reader, &mut writer).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.finish(&reader, &writer)
    }

    /// Owner, marks, mode and times, in an order in which none undoes another.
    fn finish(&self, source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
        let stat = rustix::fs::fstat(&source)?;
        rustix::fs::fchown(&target, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
        rustix::fs::fchmod(&target, mode(&stat))?;
        copy_marks(&source, &target)?;
        rustix::fs::futimens(&target, &times(&stat))
    }
}

fn symlink(source: &OwnedFd, target: &OwnedFd, name: &std::ffi::CStr, stat: &Stat) -> rustix::io::Result<()> {
    let text = rustix::fs::readlinkat(source, name, Vec::new())?;
    rustix::fs::symlinkat(&text, target, name)?;
    own(target, name, stat)
}

fn own(target: &OwnedFd, name: &std::ffi::CStr, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(target, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

fn copy_marks(source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(&source, &mut names) {
        Err(Errno::NOTSUP) => return Ok(()),
        other => other?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let is_kept = KEPT_TRUSTED.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if !is_kept || name.is_empty() {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::fgetxattr(&source, name, &mut value)?;
        rustix::fs::fsetxattr(&target, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode as RawMode & 0o7777)
}

fn times(stat: &Stat) -> Timestamps {
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 };
    Timestamps { last_access: modified, last_modification: modified }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_kept_layer_has_what_was_written_with_owners_modes_and_times() {
        let scratch = tempfile::tempdir().unwrap();
        let area = scratch.path().join("area");
        std::fs::create_dir_all(area.join("root/home/user")).unwrap();
        std::fs::create_dir_all(area.join("usr/bin")).unwrap();
        let tool = area.join("usr/bin/tool");
        std::fs::write(&tool, "x").unwrap();
        std::os::unix::fs::chown(&tool, Some(0), Some(50)).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o4755)).unwrap();
        std::fs::hard_link(&tool, area.join("usr/bin/again")).unwrap();
        symlink("/etc/shadow", area.join("root/home/user/link")).unwrap();
        let whiteout = area.join("usr/bin/gone");
        rustix::fs::mknodat(CWD, &whiteout, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        std::fs::create_dir_all(area.join("root/etc")).unwrap();
        std::fs::write(area.join("root/etc/resolv.conf"), "nameserver x").unwrap();

        let layer = keep_area(&area, &scratch.path().join("templates"), "t-1").unwrap();

        let copied = std::fs::metadata(layer.usr().join("bin/tool")).unwrap();
        assert_eq!((copied.mode() & 0o7777, copied.gid(), copied.nlink()), (0o4755, 50, 2));
        assert_eq!(copied.mtime(), std::fs::metadata(&tool).unwrap().mtime());
        let link = std::fs::read_link(layer.root().join("home/user/link")).unwrap();
        assert_eq!(link, Path::new("/etc/shadow"));
        let hidden = std::fs::symlink_metadata(layer.usr().join("bin/gone")).unwrap();
        assert_eq!(hidden.rdev(), 0);
        assert!(!layer.root().join("etc/resolv.conf").exists());
    }

    #[test]
    fn nothing_is_left_of_a_layer_that_cannot_be_copied() {
        let scratch = tempfile::tempdir().unwrap();
        let templates = scratch.path().join("templates");
        assert!(keep_area(&scratch.path().join("missing"), &templates, "t-1").is_err());
        let left: Vec<_> = std::fs::read_dir(&templates).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, [".t-1.lock"]);
    }
}
