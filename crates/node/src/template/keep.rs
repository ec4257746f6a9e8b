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

/// What a writable layer held when it was last kept, by part and path: to tell what has changed since.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    root: HashMap<String, Stamp>,
    usr: HashMap<String, Stamp>,
}

/// Programs can change every time of a file but this: when the kernel last changed its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    changed: (i64, i64),
    mode: u32,
}

impl Stamps {
    /// What a writable layer holds now.
    pub(crate) fn read(area: &Path) -> io::Result<Self> {
        Ok(Self {
            root: read_stamps(&area.join("root"), LEFT_OUT_OF_BUILDS)?,
            usr: read_stamps(&area.join("usr"), &[])?,
        })
    }
}

fn read_stamps(top: &Path, left_out: &[&str]) -> io::Result<HashMap<String, Stamp>> {
    let mut stamps = HashMap::new();
    let mut todo = vec![String::new()];
    while let Some(path) = todo.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, top.join(&path), flags, Mode::empty())?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            if matches!(name.as_str(), "." | "..") || left_out.contains(&below.as_str()) {
                continue;
            }
            let stat = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            let stamp = Stamp::of(&stat);
            if stamp.is_directory() {
                todo.push(below.clone());
            }
            stamps.insert(below, stamp);
        }
    }
    Ok(stamps)
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self { inode: stat.st_ino, changed: (stat.st_ctime, stat.st_ctime_nsec as i64), mode: stat.st_mode }
    }

    fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }
}

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
        copy_tree(&area.join(part), &making.directory.join(part), left_out, &HashMap::new()).map(drop)
    });
    match copied {
        Ok(()) => Ok(making.publish(templates, id)?),
        Err(error) => {
            making.give_up();
            Err(error)
        }
    }
}

/// Set when a sandbox of a build is made, or gone when it ends.
const LEFT_OUT_OF_BUILDS: &[&str] = &["etc/resolv.conf", "etc/isopod", "dev", "proc", "sys"];

/// Copies what has changed in a writable layer since `before`, which is brought up to date, and gives the copy a name.
/// None when nothing has. The sandbox may still be there, but nothing in it may run.
pub(crate) fn keep_changes(
    area: &Path,
    before: &mut Stamps,
    templates: &Path,
    id: &str,
) -> Result<Option<(KeptLayer, u64)>, KeepError> {
    let making = begin_making(templates, id)?;
    let copied = (|| {
        let root = copy_tree(&area.join("root"), &making.directory.join("root"), LEFT_OUT_OF_BUILDS, &before.root)?;
        let usr = copy_tree(&area.join("usr"), &making.directory.join("usr"), &[], &before.usr)?;
        Ok((root, usr))
    })();
    match copied {
        Ok((root, usr)) => {
            let bytes = root.bytes + usr.bytes;
            let has_changed = root.has_changed || usr.has_changed;
            *before = Stamps { root: root.stamps, usr: usr.stamps };
            if !has_changed {
                making.give_up();
                return Ok(None);
            }
            Ok(Some((making.publish_or_take(templates, id)?, bytes)))
        }
        Err(error) => {
            making.give_up();
            Err(error)
        }
    }
}

/// What came of copying one part.
struct Copied {
    stamps: HashMap<String, Stamp>,
    has_changed: bool,
    bytes: u64,
}

fn copy_tree(from: &Path, to: &Path, left_out: &[&str], before: &HashMap<String, Stamp>) -> Result<Copied, KeepError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: Errno| KeepError::Copy { path, source: error.into() }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(CWD, from, flags, Mode::empty()).map_err(failed(from))?;
    rustix::fs::mkdir(to, Mode::RWXU).map_err(failed(to))?;
    let target = openat(CWD, to, flags, Mode::empty()).map_err(failed(to))?;
    let stamps = HashMap::with_capacity(before.len());
    let mut copy = Copy { left_out, linked: HashMap::new(), root: &target, before, stamps, bytes: 0 };
    copy.directory(&source, &target, "")?;
    copy.hide_removed()?;
    copy.finish(&source, &target).map_err(failed(to))?;
    let Copy { stamps, bytes, .. } = copy;
    Ok(Copied { has_changed: !is_empty(&target).map_err(failed(to))?, stamps, bytes })
}

fn is_empty(directory: &OwnedFd) -> rustix::io::Result<bool> {
    for entry in Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Copy<'a> {
    left_out: &'a [&'a str],
    /// The first name of files that have several.
    linked: HashMap<u64, String>,
    root: &'a OwnedFd,
    /// What was there when this was last kept; the same is not copied again.
    before: &'a HashMap<String, Stamp>,
    /// What is there now.
    stamps: HashMap<String, Stamp>,
    bytes: u64,
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
            let stamp = Stamp::of(&stat);
            let is_same = self.before.get(&below) == Some(&stamp);
            self.stamps.insert(below.clone(), stamp);
            let copied = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    self.subdirectory(source, target, name, &below)?;
                    match is_same {
                        true => drop_if_empty(target, name),
                        false => Ok(()),
                    }
                }
                _ if is_same => Ok(()),
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

    /// What an earlier layer holds and is gone now is hidden; below a directory that is gone nothing need be.
    fn hide_removed(&self) -> Result<(), KeepError> {
        for path in self.before.keys().filter(|path| !self.stamps.contains_key(*path)) {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let has_parent = parent.is_empty() || self.stamps.get(parent).is_some_and(Stamp::is_directory);
            if !has_parent {
                continue;
            }
            let failed = |error: Errno| KeepError::Copy { path: path.clone(), source: error.into() };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = openat(self.root, if parent.is_empty() { "." } else { parent }, flags, Mode::empty());
            let hidden = directory.and_then(|directory| {
                rustix::fs::mknodat(&directory, name, FileType::CharacterDevice, Mode::empty(), 0)
            });
            hidden.map_err(failed)?;
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
        // A directory that the layer below got from here hides that one's files if it says once more that it is opaque.
        let is_old = self
            .before
            .get(path)
            .is_some_and(|before| self.stamps.get(path).map(|now| now.inode) == Some(before.inode));
        // Last: writing into it changed its time.
        self.finish(&source, &target)
            .and_then(|()| if is_old { forget_opaque(&target) } else { Ok(()) })
            .map_err(failed)
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
        let copied = io::copy(&mut reader, &mut writer);
        self.bytes += copied.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
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

fn forget_opaque(directory: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::fs::fremovexattr(directory, "trusted.overlay.opaque") {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        other => other,
    }
}

fn drop_if_empty(target: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(target, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        other => other,
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
    fn only_what_has_changed_is_kept_and_what_is_gone_is_hidden() {
        let scratch = tempfile::tempdir().unwrap();
        let (area, templates) = (scratch.path().join("area"), scratch.path().join("templates"));
        std::fs::create_dir_all(area.join("root/d/same")).unwrap();
        std::fs::create_dir_all(area.join("usr")).unwrap();
        for name in ["d/a", "d/b", "d/same/x", "gone"] {
            std::fs::write(area.join("root").join(name), "1").unwrap();
        }
        let opaque = |path: &Path| rustix::fs::getxattr(path, "trusted.overlay.opaque", &mut [0; 8]).is_ok();
        rustix::fs::setxattr(area.join("root/d"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        let mut stamps = Stamps::default();
        let (first, bytes) = keep_changes(&area, &mut stamps, &templates, "l-1").unwrap().unwrap();
        assert_eq!(bytes, 4);
        assert!(opaque(&first.root().join("d")));
        assert!(keep_changes(&area, &mut stamps, &templates, "l-2").unwrap().is_none());

        std::fs::write(area.join("root/d/b"), "2").unwrap();
        std::fs::remove_file(area.join("root/d/a")).unwrap();
        std::fs::remove_file(area.join("root/gone")).unwrap();
        let (second, _) = keep_changes(&area, &mut stamps, &templates, "l-3").unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(second.root().join("d/b")).unwrap(), "2");
        for hidden in ["d/a", "gone"] {
            let mark = std::fs::symlink_metadata(second.root().join(hidden)).unwrap();
            assert_eq!(FileType::from_raw_mode(mark.mode()), FileType::CharacterDevice, "{hidden}");
        }
        assert!(!second.root().join("d/same").exists());
        assert!(!opaque(&second.root().join("d")), "it would hide what the first layer holds");
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
