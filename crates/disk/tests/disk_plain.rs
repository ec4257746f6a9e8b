//! Areas as plain directories: no limit, but a clear reason, and a removal that no content can trick or stop.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on fails; timings are printed")]

mod support;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use isopod_disk::{Disk, DiskError, DiskKind, NoLimit};
use isopod_isolation::sys::project_quota::{ProjectQuota, project_quota};
use isopod_wire::Bytes;
use rustix::fs::{Mode, OFlags};
use support::{State, eventually};

#[test]
fn without_mkfs_areas_have_no_limit_and_the_reason_names_the_package() {
    let state = State::new();
    let directory = File::open(state.path()).unwrap();
    assert_ne!(project_quota(directory.as_fd()), ProjectQuota::Enforced, "this test needs a disk without prjquota");
    let disk = state.open_plain();
    assert_eq!(disk.no_limit(), Some(&NoLimit::NoMkfs));
    assert!(disk.no_limit().unwrap().to_string().contains("btrfs-progs"));
    assert_eq!(disk.kind(), DiskKind::Plain);

    assert!(matches!(disk.create_area("a", Some(Bytes::mib(16))), Err(DiskError::CannotLimit { .. })));
    assert!(disk.area_names().unwrap().is_empty());
    let area = disk.create_area("a", None).unwrap();
    assert_eq!(std::fs::metadata(area.path()).unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(matches!(disk.set_limit("a", Some(Bytes::mib(16))), Err(DiskError::CannotLimit { .. })));
    assert!(matches!(disk.set_limit("b", None), Err(DiskError::NoSuchArea(_))));
    assert!(matches!(disk.remove_area("b"), Err(DiskError::NoSuchArea(_))));
    assert!(matches!(disk.create_area("a", None), Err(DiskError::AreaExists(_))));
    assert_eq!(disk.usage("a").unwrap().used, None);
    std::fs::write(area.path().join("file"), vec![7; 1 << 20]).unwrap();
    disk.sync_area("a").unwrap();
    let size = disk.size("a").unwrap();
    assert!((Bytes::mib(1)..Bytes::mib(2)).contains(&size), "its blocks are counted: {size}");
    assert!(matches!(disk.size("b"), Err(DiskError::NoSuchArea(_))));
    assert!(disk.free_space().unwrap() > Bytes(0));
    state.destroy(disk);
}

#[test]
fn areas_without_limit_stay_reachable_when_limits_become_possible() {
    let state = State::new();
    let disk = state.open_plain();
    std::fs::write(disk.create_area("a", None).unwrap().path().join("file"), "still here").unwrap();
    drop(disk);
    let disk = state.open();
    assert_eq!(disk.no_limit(), Some(&NoLimit::OlderAreas));
    assert_eq!(std::fs::read_to_string(disk.area("a").unwrap().path().join("file")).unwrap(), "still here");
    disk.remove_area("a").unwrap();
    drop(disk);
    let disk = state.open();
    assert!(disk.can_limit(), "no such area is left, so the image can come");
    state.destroy(disk);
}

#[test]
fn a_name_is_free_at_once_after_removal() {
    let state = State::new();
    let disk = state.open_plain();
    for round in 0..50 {
        let area = disk.create_area("same", None).unwrap();
        std::fs::write(area.path().join("file"), round.to_string()).unwrap();
        disk.remove_area("same").unwrap();
    }
    assert!(disk.area_names().unwrap().is_empty());
    empty_trash(&state);
    state.destroy(disk);
}

#[test]
fn removal_follows_no_symbolic_link() {
    let state = State::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    std::fs::create_dir(outside.path().join("folder")).unwrap();
    let disk = state.open_plain();
    let area = disk.create_area("a", None).unwrap();
    symlink(outside.path(), area.path().join("link")).unwrap();
    std::fs::create_dir_all(area.path().join("x/y")).unwrap();
    symlink(outside.path().join("folder"), area.path().join("x/y/link")).unwrap();
    symlink(outside.path().join("precious"), area.path().join("x/y/moved-1-1")).unwrap();
    disk.remove_area("a").unwrap();
    empty_trash(&state);
    assert!(outside.path().join("precious").exists() && outside.path().join("folder").exists());

    // An area that is itself a link is not ours. The link is removed, and its target stays.
    symlink(outside.path(), state.path().join("disk/areas/link")).unwrap();
    assert!(disk.area_names().unwrap().is_empty());
    assert!(disk.area("link").is_err() && disk.usage("link").is_err());
    disk.remove_area("link").unwrap();
    empty_trash(&state);
    assert!(outside.path().join("precious").exists());
    state.destroy(disk);
}

#[test]
fn removal_does_not_enter_another_mount() {
    let state = State::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    let disk = state.open_plain();
    let area = disk.create_area("a", None).unwrap();
    std::fs::create_dir_all(area.path().join("x/mounted")).unwrap();
    std::fs::write(area.path().join("x/file"), "x").unwrap();
    rustix::mount::mount_bind(outside.path(), area.path().join("x/mounted")).unwrap();
    disk.remove_area("a").unwrap();
    let trash = state.path().join("disk/trash");
    let tree = std::fs::read_dir(&trash).unwrap().next().unwrap().unwrap().path();
    eventually("the file beside the mount is gone", || !tree.join("x/file").exists());
    assert!(outside.path().join("precious").exists());

    rustix::mount::unmount(tree.join("x/mounted"), rustix::mount::UnmountFlags::empty()).unwrap();
    drop(disk);
    let disk = state.open_plain();
    empty_trash(&state);
    assert!(outside.path().join("precious").exists());
    state.destroy(disk);
}

#[test]
fn directories_of_mode_0000_and_odd_files_are_removed() {
    let state = State::new();
    let disk = state.open_plain();
    let area = disk.create_area("a", None).unwrap();
    let inner = area.path().join("closed/inner");
    std::fs::create_dir_all(&inner).unwrap();
    File::create(inner.join("file")).unwrap();
    let directory = File::open(&inner).unwrap();
    rustix::fs::mknodat(&directory, "pipe", rustix::fs::FileType::Fifo, Mode::empty(), 0).unwrap();
    rustix::fs::mknodat(&directory, "whiteout", rustix::fs::FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    File::create(inner.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe\n"))).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(inner.join("socket")).unwrap();
    for path in [&inner, &area.path().join("closed"), &area.path().to_owned()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    disk.remove_area("a").unwrap();
    empty_trash(&state);
    state.destroy(disk);
}

#[test]
fn a_tree_of_ten_thousand_levels_is_removed() {
    let state = State::new();
    let disk = state.open_plain();
    let area = disk.create_area("deep", None).unwrap();
    let mut directory: OwnedFd = File::open(area.path()).unwrap().into();
    for _ in 0..10_000 {
        rustix::fs::mkdirat(&directory, "directory-with-a-name", Mode::RWXU).unwrap();
        directory = rustix::fs::openat(&directory, "directory-with-a-name", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(directory);
    disk.remove_area("deep").unwrap();
    let start = Instant::now();
    empty_trash(&state);
    println!("10,000 levels deleted in {:?}", start.elapsed());
    state.destroy(disk);
}

#[test]
fn a_hundred_thousand_files_are_removed_in_the_background() {
    let state = State::new();
    let disk = state.open_plain();
    let area = disk.create_area("many", None).unwrap();
    for folder in 0..100 {
        let folder = area.path().join(format!("a/b/{folder}"));
        std::fs::create_dir_all(&folder).unwrap();
        (0..1000).for_each(|file| drop(File::create(folder.join(file.to_string())).unwrap()));
    }
    let start = Instant::now();
    disk.remove_area("many").unwrap();
    println!("100,000 files: remove_area took {:?}", start.elapsed());
    assert!(start.elapsed().as_millis() < 100);
    // Stopped in the middle, and continued by the next disk.
    drop(disk);
    println!("closing after {:?}", start.elapsed());
    let disk = state.open_plain();
    empty_trash(&state);
    println!("deleted after {:?}", start.elapsed());
    state.destroy(disk);
}

fn empty_trash(state: &State) {
    let trash: &Path = &state.path().join("disk/trash");
    eventually("an empty trash", || std::fs::read_dir(trash).unwrap().count() == 0);
}

#[test]
fn a_state_directory_that_cannot_be_is_an_error() {
    let state = State::new();
    let file = state.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(Disk::open(&file, &support::small()), Err(DiskError::Path { .. })));
    assert!(matches!(Disk::open(&file.join("below"), &support::small()), Err(DiskError::Path { .. })));
}
