//! Copies of areas on a disk without snapshots: complete, in two steps, and made while a hostile program changes the source.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use isopod_disk::{Amount, Disk, DiskError, DiskKind, is_disk_full};
use isopod_wire::Bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use support::{HostDisk, MIB, eventually, without_mkfs};

/// An ext4 without quotas, and an area on it. So it does not depend on what is below `/tmp`.
struct Place {
    disk: Disk,
    source: PathBuf,
    host: HostDisk,
}

impl Place {
    fn new() -> Self {
        let host = HostDisk::new(128 << 20);
        let disk = Disk::open(&host.state(), &without_mkfs()).unwrap();
        assert_eq!(disk.kind(), DiskKind::Plain);
        let source = disk.create_area("source", None).unwrap().path().to_owned();
        Self { disk, source, host }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Waits until the last change is old enough to be told from the next one.
    fn settle(&self) {
        let settled_at = |path: PathBuf| {
            let found = path.symlink_metadata().unwrap();
            // Small inodes have only seconds.
            let tick = Duration::from_millis(if found.ctime_nsec() == 0 { 2100 } else { 150 });
            SystemTime::UNIX_EPOCH + Duration::new(found.ctime() as u64, found.ctime_nsec() as u32) + tick
        };
        let settled = all_below(&self.source).into_iter().map(settled_at).max().unwrap();
        eventually("a later time", || SystemTime::now() > settled);
    }

    /// Copies with these changes between the two steps, and compares. Returns how much the second step copied.
    fn copy_with(&self, changes: impl FnOnce()) -> Amount {
        self.settle();
        let copying = self.disk.begin_copy("source", "target").unwrap();
        changes();
        let amount = self.disk.finish_copy(copying).unwrap();
        self.assert_same("target");
        self.disk.remove_area("target").unwrap();
        amount
    }

    #[track_caller]
    fn assert_same(&self, target: &str) {
        let (expected, found) = (describe(&self.source), describe(self.disk.area(target).unwrap().path()));
        let names: BTreeSet<&PathBuf> = expected.keys().chain(found.keys()).collect();
        for name in names {
            assert_eq!(found.get(name), expected.get(name), "{}", name.display());
        }
    }
}

/// Everything about a file that a copy must have.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    kind_and_mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    size: u64,
    device: u64,
    links: u64,
    xattrs: BTreeMap<CString, Vec<u8>>,
    link_target: Option<PathBuf>,
    content: Vec<u8>,
    /// All names of the same file.
    names: BTreeSet<PathBuf>,
}

fn all_below(top: &Path) -> Vec<PathBuf> {
    let mut all = vec![top.to_owned()];
    for entry in fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().is_dir() {
            true => all.extend(all_below(&path)),
            false => all.push(path),
        }
    }
    all
}

fn describe(top: &Path) -> BTreeMap<PathBuf, Described> {
    let below = |path: &Path| path.strip_prefix(top).unwrap().to_owned();
    let mut names: BTreeMap<u64, BTreeSet<PathBuf>> = BTreeMap::new();
    for path in all_below(top) {
        names.entry(path.symlink_metadata().unwrap().ino()).or_default().insert(below(&path));
    }
    let describe = |path: PathBuf| {
        let found = path.symlink_metadata().unwrap();
        let is_file = found.is_file();
        let described = Described {
            kind_and_mode: found.mode(),
            owner: (found.uid(), found.gid()),
            modified: (found.mtime(), found.mtime_nsec()),
            size: if is_file { found.len() } else { 0 },
            device: found.rdev(),
            links: if found.is_dir() { 0 } else { found.nlink() },
            xattrs: xattrs(&path),
            link_target: fs::read_link(&path).ok(),
            content: if is_file { fs::read(&path).unwrap() } else { Vec::new() },
            names: names[&found.ino()].clone(),
        };
        (below(&path), described)
    };
    all_below(top).into_iter().map(describe).collect()
}

fn xattrs(path: &Path) -> BTreeMap<CString, Vec<u8>> {
    let mut list = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, list.as_mut_slice()).unwrap();
    let names = list[..length].split_inclusive(|byte| *byte == 0);
    let names = names.map(|name| CStr::from_bytes_with_nul(name).unwrap().to_owned());
    let value = |name: CString| {
        let mut value = vec![0; 1 << 16];
        let length = rustix::fs::lgetxattr(path, name.as_c_str(), value.as_mut_slice()).unwrap();
        value.truncate(length);
        (name, value)
    };
    names.map(value).collect()
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn set_modified(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn node(path: &Path, kind: FileType, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device).unwrap();
}

/// The file capability `cap_net_raw+ep`.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// A default ACL: the owner and the user 5 may do everything, others nothing.
const DEFAULT_ACL: [u8; 44] = [
    2, 0, 0, 0, // version
    1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, // the owner
    2, 0, 7, 0, 5, 0, 0, 0, // user 5
    4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // the group
    0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, // the mask
    0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // others
];

/// One of each kind of file that a writable layer may contain.
fn fill(place: &Place) {
    let source = &place.source;
    let owned = place.write("root/owned", "content");
    std::os::unix::fs::lchown(&owned, Some(1000), Some(2000)).unwrap();
    fs::set_permissions(&owned, Permissions::from_mode(0o6751)).unwrap();
    set_xattr(&owned, "security.capability", &CAPABILITY);
    set_xattr(&owned, "user.note", b"kept");
    set_modified(&owned, 1_000_000_000, 123_456_789);
    place.write("root/empty", "");

    symlink("/etc/../nowhere", source.join("root/link")).unwrap();
    std::os::unix::fs::lchown(source.join("root/link"), Some(7), Some(8)).unwrap();
    set_xattr(&source.join("root/link"), "trusted.overlay.origin", b"\0\xfbhandle");
    set_modified(&source.join("root/link"), 5, 6);

    fs::hard_link(&owned, source.join("root/second")).unwrap();
    fs::create_dir_all(source.join("root/opaque/below")).unwrap();
    fs::hard_link(&owned, source.join("root/opaque/third")).unwrap();
    set_xattr(&source.join("root/opaque"), "trusted.overlay.opaque", b"y");
    set_xattr(&source.join("root/opaque/below"), "user.overlay.redirect", b"/elsewhere");

    node(&source.join("root/whiteout"), FileType::CharacterDevice, 0);
    fs::hard_link(source.join("root/whiteout"), source.join("root/opaque/whiteout")).unwrap();
    node(&source.join("root/block"), FileType::BlockDevice, rustix::fs::makedev(7, 300));
    node(&source.join("root/pipe"), FileType::Fifo, 0);
    node(&source.join("root/socket"), FileType::Socket, 0);

    place.write("root/acl/inherits", "x");
    set_xattr(&source.join("root/acl"), "system.posix_acl_default", &DEFAULT_ACL);
    place.write("root/acl/has", "x");

    let odd = source.join(std::ffi::OsStr::from_bytes(b"root/\xff\n name"));
    fs::write(odd, "x").unwrap();
    fs::create_dir(source.join("root/closed")).unwrap();
    place.write("root/closed/file", "x");
    fs::set_permissions(source.join("root/closed/file"), Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(source.join("root/closed"), Permissions::from_mode(0o000)).unwrap();
    set_modified(&source.join("root/closed"), 77, 88);
    set_modified(&source.join("root"), 99, 11);

    let sparse = File::create(source.join("root/sparse")).unwrap();
    sparse.set_len(32 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 16 << 20).unwrap();
}

#[test]
fn a_copy_has_everything_that_the_source_has() {
    let place = Place::new();
    fill(&place);
    place.disk.copy_area("source", "once").unwrap();
    place.assert_same("once");
    place.settle();
    let copying = place.disk.begin_copy("source", "twice").unwrap();
    assert_eq!(place.disk.finish_copy(copying).unwrap(), Amount::default(), "nothing has changed meanwhile");
    place.assert_same("twice");
    for target in ["once", "twice"] {
        let area = place.disk.area(target).unwrap();
        let sparse = area.path().join("root/sparse").metadata().unwrap();
        assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes: {} blocks", sparse.blocks());
    }
}

#[test]
fn only_what_has_changed_is_copied_while_the_source_stands_still() {
    let place = Place::new();
    fill(&place);
    for number in 0..100 {
        place.write(&format!("root/many/{number}"), vec![b'x'; 10_000]);
    }
    let amount = place.copy_with(|| {
        place.write("root/many/7", vec![b'y'; 20_000]);
        place.write("root/new/file", vec![b'z'; 300]);
        fs::remove_file(place.source.join("root/many/8")).unwrap();
    });
    assert_eq!(amount, Amount { files: 2, bytes: 20_300 });
}

#[test]
fn each_change_between_the_steps_comes_out_right() {
    let place = Place::new();
    fill(&place);
    let path = |name: &str| place.source.join(name);
    for name in ["a/x", "a/sub/y", "b/x", "b/sub/y", "gone/deep/er/file", "turns/into/a/file"] {
        place.write(&format!("root/{name}"), name);
    }
    for name in ["same-size", "renamed", "replaced", "linked", "unlinked", "turns-into-a-directory"] {
        place.write(&format!("root/{name}"), name);
    }
    fs::hard_link(path("root/unlinked"), path("root/unlinked-too")).unwrap();
    set_modified(&path("root/same-size"), 1000, 1);
    set_modified(&path("root/replaced"), 1000, 2);
    place.copy_with(|| {
        // All that a program can set of these is as before.
        let same = OpenOptions::new().write(true).open(path("root/same-size")).unwrap();
        same.write_all_at(b"SAME-size", 0).unwrap();
        set_modified(&path("root/same-size"), 1000, 1);
        fs::write(path("root/replacement"), "REPLACED").unwrap();
        set_modified(&path("root/replacement"), 1000, 2);
        fs::rename(path("root/replacement"), path("root/replaced")).unwrap();

        fs::rename(path("root/renamed"), path("root/closed/renamed")).unwrap();
        fs::hard_link(path("root/linked"), path("root/linked-too")).unwrap();
        fs::remove_file(path("root/unlinked")).unwrap();
        fs::write(path("root/unlinked"), "another file").unwrap();
        // The names and what is below are the same, but of the other one.
        rustix::fs::renameat_with(CWD, path("root/a"), CWD, path("root/b"), RenameFlags::EXCHANGE).unwrap();
        fs::remove_dir_all(path("root/gone")).unwrap();
        fs::remove_dir_all(path("root/turns")).unwrap();
        fs::write(path("root/turns"), "a file").unwrap();
        fs::remove_file(path("root/turns-into-a-directory")).unwrap();
        place.write("root/turns-into-a-directory/below", "x");
        fs::remove_dir_all(path("root/opaque")).unwrap();
        symlink("/etc", path("root/opaque")).unwrap();
        fs::remove_file(path("root/pipe")).unwrap();
        fs::write(path("root/pipe"), "no pipe").unwrap();

        rustix::fs::lremovexattr(path("root/owned"), "user.note").unwrap();
        rustix::fs::lremovexattr(path("root/acl"), "system.posix_acl_default").unwrap();
        fs::set_permissions(path("root/closed"), Permissions::from_mode(0o711)).unwrap();
        std::os::unix::fs::lchown(path("root/sparse"), Some(3), None).unwrap();
        set_modified(&path("root/empty"), 3, 4);
    });
    // What is below a directory that is moved has not changed by itself.
    place.copy_with(|| fs::rename(path("root/a"), path("root/b/a")).unwrap());
}

#[test]
fn a_file_that_is_open_for_writing_is_left_to_the_second_step() {
    let place = Place::new();
    let path = place.write("root/database", vec![b'a'; 8192]);
    let open = OpenOptions::new().write(true).open(&path).unwrap();
    // Also if its ctime stays the same, as with a write that is under way.
    assert_eq!(place.copy_with(|| ()), Amount { files: 1, bytes: 8192 });
    place.copy_with(|| open.write_all_at(b"new", 4096).unwrap());
    drop(open);
    assert_eq!(place.copy_with(|| ()), Amount::default());
}

#[test]
fn a_file_that_has_just_changed_is_left_to_the_second_step() {
    let place = Place::new();
    place.write("root/old", "old");
    place.settle();
    place.write("root/new", "new");
    let copying = place.disk.begin_copy("source", "target").unwrap();
    // In the same tick of the clock perhaps, and with the same size.
    fs::write(place.source.join("root/new"), "NEW").unwrap();
    place.disk.finish_copy(copying).unwrap();
    place.assert_same("target");
}

#[test]
fn a_tree_with_more_levels_than_descriptors_is_copied() {
    const LEVELS: usize = 3000;
    let place = Place::new();
    let descend = |top: &Path, with: &dyn Fn(&OwnedFd)| {
        let mut directory: OwnedFd = File::open(top).unwrap().into();
        for _ in 0..LEVELS {
            with(&directory);
            directory = rustix::fs::openat(&directory, "level", OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        directory
    };
    let make = |directory: &OwnedFd| {
        rustix::fs::mkdirat(directory, "level", Mode::RWXU).unwrap();
        rustix::fs::mkdirat(directory, "next-to-it", Mode::RUSR).unwrap();
    };
    let lowest = descend(&place.source, &make);
    let file = rustix::fs::openat(&lowest, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    File::from(file).write_all(b"at the bottom").unwrap();
    let check = |directory: &OwnedFd| {
        let beside = rustix::fs::statat(directory, "next-to-it", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!(beside.st_mode & 0o7777, 0o400);
    };
    let copying = place.disk.begin_copy("source", "target").unwrap();
    place.disk.finish_copy(copying).unwrap();
    let lowest = descend(place.disk.area("target").unwrap().path(), &check);
    let file = rustix::fs::openat(&lowest, "file", OFlags::RDONLY, Mode::empty()).unwrap();
    assert_eq!(std::io::read_to_string(File::from(file)).unwrap(), "at the bottom");
}

/// The copy has one name more while it is made.
#[test]
fn a_file_with_as_many_names_as_there_can_be_is_copied() {
    let place = Place::new();
    let file = place.write("root/0", "x");
    let names = (1..).take_while(|number| fs::hard_link(&file, place.source.join(format!("root/{number}"))).is_ok());
    let names = names.count() + 1;
    assert_eq!(file.metadata().unwrap().nlink(), names as u64);
    assert!(names >= 65_000, "{names}");
    place.settle();
    let copying = place.disk.begin_copy("source", "target").unwrap();
    place.disk.finish_copy(copying).unwrap();
    let copied = fs::read_dir(place.disk.area("target").unwrap().path().join("root")).unwrap();
    let sizes: Vec<u64> = copied.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes, vec![1; names]);
}

#[test]
fn a_copy_that_fails_leaves_nothing() {
    let place = Place::new();
    place.write("root/large", vec![1; 4 * MIB]);
    place.settle();
    let others = place.host.fill();
    // Enough for a directory, and not for the file.
    let file = OpenOptions::new().write(true).open(&others).unwrap();
    file.set_len(file.metadata().unwrap().len() - MIB as u64).unwrap();
    // Or its space would not come back below.
    drop(file);
    let full = |error: &DiskError| matches!(error, DiskError::Area { source, .. } if is_disk_full(source));
    let error = place.disk.copy_area("source", "target").unwrap_err();
    assert!(full(&error), "{error:?}");
    // The first step takes only a part of what is free, so it may be the second one that fails.
    let failed = place.disk.begin_copy("source", "target").and_then(|copying| place.disk.finish_copy(copying));
    assert!(full(&failed.unwrap_err()));
    let names: Vec<String> = place.disk.area_names().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["source"]);
    fs::remove_file(others).unwrap();
    eventually("space", || place.disk.free_space().unwrap() > Bytes::mib(16));

    // What is begun is an area, which is removed like any other.
    drop(place.disk.begin_copy("source", "target").unwrap());
    assert!(matches!(place.disk.copy_area("source", "target"), Err(DiskError::AreaExists(_))));
    place.disk.remove_area("target").unwrap();
    assert!(matches!(place.disk.copy_area("missing", "target"), Err(DiskError::NoSuchArea(_))));
    assert!(matches!(place.disk.begin_copy("missing", "target"), Err(DiskError::NoSuchArea(_))));
    assert_eq!(place.disk.area_names().unwrap().len(), 1);
}

/// Exchanges directories, files, symbolic links and FIFOs, all the time.
fn attack(top: &Path, stop: &AtomicBool) {
    let swap = |one: &str, other: &str| {
        // What an earlier one left there may not be possible to exchange.
        let _ = rustix::fs::renameat_with(CWD, top.join(one), CWD, top.join(other), RenameFlags::EXCHANGE);
    };
    while !stop.load(Ordering::Relaxed) {
        swap("root/directory", "root/link");
        swap("root/file", "root/link-to-file");
        // Not in a directory that may be the link now, which would bring the secret in for real.
        swap("root/pipe", "root/other/file");
        swap("root/link", "root/pipe");
        swap("root/file", "root/directory");
    }
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_link_is_followed_while_directories_and_links_are_swapped() {
    const ROUNDS: usize = 300;
    let place = Place::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::write(outside.path().join("file"), "secret").unwrap();
    for name in ["root/directory/file", "root/directory/secret", "root/other/file", "root/file"] {
        place.write(name, "own");
    }
    symlink(outside.path(), place.source.join("root/link")).unwrap();
    symlink(outside.path().join("secret"), place.source.join("root/link-to-file")).unwrap();
    node(&place.source.join("root/pipe"), FileType::Fifo, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(&place.source, &stop));
        // Also if an assertion fails, so that the test ends.
        let _stop = StopAtEnd(&stop);
        for round in 0..ROUNDS {
            let name = format!("target{round}");
            drop(place.disk.begin_copy("source", &name).unwrap());
            for path in all_below(place.disk.area(&name).unwrap().path()) {
                let is_file = path.symlink_metadata().unwrap().is_file();
                assert!(!is_file || fs::read(&path).unwrap() != b"secret", "{} came from outside", path.display());
            }
            place.disk.remove_area(&name).unwrap();
        }
        let last = place.disk.begin_copy("source", "last").unwrap();
        stop.store(true, Ordering::Relaxed);
        attacker.join().unwrap();
        place.disk.finish_copy(last).unwrap();
    });
    place.assert_same("last");
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
}
