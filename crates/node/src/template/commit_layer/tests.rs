//! Layers that hostile and ordinary programs wrote.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::*;

fn commit(area: &Path, stamps: &mut Stamps, templates: &Path, id: &str) -> Result<Option<(Layer, u64)>, CommitError> {
    commit_changes(area, stamps, templates, id, &Quota::new(layer_bounds(None)))
}

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

    let layer = commit_area(
        &area,
        &scratch.path().join("templates"),
        "t-1",
        None,
        Existing::Take,
        &Quota::new(layer_bounds(None)),
    )
    .unwrap();

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
    let (first, bytes) = commit(&area, &mut stamps, &templates, "l-1").unwrap().unwrap();
    assert_eq!(bytes, 4);
    assert!(opaque(&first.root().join("d")));
    assert!(commit(&area, &mut stamps, &templates, "l-2").unwrap().is_none());

    std::fs::write(area.join("root/d/b"), "2").unwrap();
    std::fs::remove_file(area.join("root/d/a")).unwrap();
    std::fs::remove_file(area.join("root/gone")).unwrap();
    let (second, _) = commit(&area, &mut stamps, &templates, "l-3").unwrap().unwrap();
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
    assert!(
        commit_area(
            &scratch.path().join("missing"),
            &templates,
            "t-1",
            None,
            Existing::Take,
            &Quota::new(layer_bounds(None))
        )
        .is_err()
    );
    let left: Vec<_> = std::fs::read_dir(&templates).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, [".t-1.lock"]);
}

/// An empty writable layer.
fn area(scratch: &Path) -> PathBuf {
    let area = scratch.join("area");
    std::fs::create_dir_all(area.join("root")).unwrap();
    std::fs::create_dir_all(area.join("usr")).unwrap();
    area
}

fn bytes(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Every inode below a directory, without following links.
fn inodes(top: &Path) -> Vec<u64> {
    let (mut found, mut todo) = (Vec::new(), vec![top.to_owned()]);
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        found.push(meta.ino());
        if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// The names in a directory, and its ctime.
fn picture(directory: &Path) -> (Vec<std::ffi::OsString>, i64, i64) {
    let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let meta = std::fs::metadata(directory).unwrap();
    (names, meta.ctime(), meta.ctime_nsec())
}

#[test]
fn a_second_name_of_a_file_is_never_found_through_a_link() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates, decoy) =
        (area(scratch.path()), scratch.path().join("templates"), scratch.path().join("decoy"));
    std::fs::create_dir(&decoy).unwrap();
    std::fs::write(decoy.join("secret"), "the host's").unwrap();
    let before = picture(&decoy);
    let root = area.join("root");
    // As text, both bytes and the link's name are the same: U+FFFD.
    for (top, odd) in [("a", b"\xff"), ("b", b"\xfe")] {
        std::fs::create_dir_all(root.join(top).join(bytes(odd))).unwrap();
        std::fs::write(root.join(top).join(bytes(odd)).join("secret"), "ours").unwrap();
        symlink(&decoy, root.join(top).join("\u{fffd}")).unwrap();
    }
    std::fs::create_dir(root.join("z")).unwrap();
    std::fs::hard_link(root.join("a").join(bytes(b"\xff")).join("secret"), root.join("z/one")).unwrap();
    std::fs::hard_link(root.join("b").join(bytes(b"\xfe")).join("secret"), root.join("z/two")).unwrap();

    let mut stamps = Stamps::default();
    let (layer, _) = commit(&area, &mut stamps, &templates, "l-1").unwrap().unwrap();

    let hosts = inodes(&decoy);
    assert_eq!(hosts.len(), 2);
    let kept = inodes(&layer.root().join(".."));
    assert!(kept.iter().all(|inode| !hosts.contains(inode)), "a file of the host is in the layer");
    for path in ["z/one", "z/two"] {
        assert_eq!(std::fs::read_to_string(layer.root().join(path)).unwrap(), "ours");
        assert_eq!(std::fs::metadata(layer.root().join(path)).unwrap().nlink(), 2);
    }
    assert_eq!(picture(&decoy), before);
}

#[test]
fn what_is_gone_is_never_hidden_through_a_link() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates, decoy) =
        (area(scratch.path()), scratch.path().join("templates"), scratch.path().join("decoy"));
    std::fs::create_dir_all(decoy.join("etc")).unwrap();
    let before = [picture(&decoy), picture(&decoy.join("etc"))];
    let root = area.join("root");
    let odd = root.join(bytes(b"\xff"));
    std::fs::create_dir_all(odd.join("etc")).unwrap();
    std::fs::write(odd.join("etc/passwd"), "x").unwrap();
    std::fs::write(odd.join("top"), "x").unwrap();
    symlink(&decoy, root.join("\u{fffd}")).unwrap();
    let mut stamps = Stamps::default();
    commit(&area, &mut stamps, &templates, "l-1").unwrap().unwrap();

    std::fs::remove_file(odd.join("etc/passwd")).unwrap();
    std::fs::remove_file(odd.join("top")).unwrap();
    // A new stamp, so that the second layer contains the link too.
    std::fs::remove_file(root.join("\u{fffd}")).unwrap();
    symlink(&decoy, root.join("\u{fffd}")).unwrap();
    let (second, _) = commit(&area, &mut stamps, &templates, "l-2").unwrap().unwrap();

    assert_eq!([picture(&decoy), picture(&decoy.join("etc"))], before, "something was made on the host");
    for hidden in ["top", "etc/passwd"] {
        let mark = std::fs::symlink_metadata(second.root().join(bytes(b"\xff")).join(hidden)).unwrap();
        assert_eq!(FileType::from_raw_mode(mark.mode()), FileType::CharacterDevice, "{hidden}");
    }
}

#[test]
fn names_that_look_alike_are_told_apart() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates) = (area(scratch.path()), scratch.path().join("templates"));
    for odd in [b"\xff", b"\xfe"] {
        std::fs::write(area.join("usr").join(bytes(odd)), odd).unwrap();
    }
    let mut stamps = Stamps::default();
    let (first, _) = commit(&area, &mut stamps, &templates, "l-1").unwrap().unwrap();
    for odd in [b"\xff", b"\xfe"] {
        assert_eq!(std::fs::read(first.usr().join(bytes(odd))).unwrap(), odd);
    }
    std::fs::remove_file(area.join("usr").join(bytes(b"\xff"))).unwrap();
    let (second, _) = commit(&area, &mut stamps, &templates, "l-2").unwrap().unwrap();
    assert_eq!(picture(&second.usr()).0, [bytes(b"\xff")]);
}

/// Nested directories, created without a growing path.
fn nest(top: &Path, levels: usize) {
    let mut directory = rustix::fs::open(top, stamps::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = rustix::fs::openat(&directory, "d", stamps::DIRECTORY, Mode::empty()).unwrap();
    }
}

#[test]
fn directories_without_end_are_refused_and_leave_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates) = (area(scratch.path()), scratch.path().join("templates"));
    nest(&area.join("root"), 5000);
    let refused = commit(&area, &mut Stamps::default(), &templates, "l-1").unwrap_err();
    assert!(matches!(refused, CommitError::Depth(_)) && refused.is_about_the_files(), "{refused}");
    let refused = Stamps::read(&area, &Quota::new(layer_bounds(None))).unwrap_err();
    assert!(matches!(refused, CommitError::Depth(_)), "{refused}");
    assert_eq!(picture(&templates).0, [".l-1.lock"]);
    isopod_disk::remove_tree(&area).unwrap();
}

#[test]
fn a_hundred_levels_are_fine() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates) = (area(scratch.path()), scratch.path().join("templates"));
    nest(&area.join("root"), 100);
    let (layer, _) = commit(&area, &mut Stamps::default(), &templates, "l-1").unwrap().unwrap();
    assert!(layer.root().join("d/".repeat(100)).is_dir());
}

#[test]
fn a_file_of_holes_takes_no_room() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates) = (area(scratch.path()), scratch.path().join("templates"));
    std::fs::File::create(area.join("root/sparse")).unwrap().set_len(1 << 40).unwrap();
    let (layer, bytes) = commit(&area, &mut Stamps::default(), &templates, "l-1").unwrap().unwrap();
    let meta = std::fs::metadata(layer.root().join("sparse")).unwrap();
    assert_eq!((bytes, meta.len()), (0, 1 << 40));
    assert!(meta.blocks() * 512 < 1 << 20, "{}", meta.blocks());
}

#[test]
fn more_than_the_quota_is_refused_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates) = (area(scratch.path()), scratch.path().join("templates"));
    for name in ["1", "2", "3"] {
        std::fs::write(area.join("root").join(name), [1; 100]).unwrap();
    }
    let with = |bytes, entries| {
        let quota = Quota::new(Bounds { bytes, entries });
        commit_changes(&area, &mut Stamps::default(), &templates, "l-1", &quota)
    };
    assert!(matches!(with(299, 3), Err(CommitError::Quota(QuotaError::Bytes(299)))));
    assert!(matches!(with(300, 2), Err(CommitError::Quota(QuotaError::Entries(2)))));
    assert_eq!(picture(&templates).0, [".l-1.lock"]);
    assert!(with(300, 3).unwrap().is_some());
    let quota = Quota::new(layer_bounds(None)).stopped_by(|| Some("enough".to_owned()));
    let stopped = commit_changes(&area, &mut Stamps::default(), &templates, "l-2", &quota).unwrap_err();
    assert!(matches!(stopped, CommitError::Quota(QuotaError::Stopped(_))), "{stopped}");
}

/// Two processes build the same template on a new machine. The second one uses the result of the first, which may be in
/// use by then.
#[test]
fn a_layer_that_somebody_else_finished_first_is_taken() {
    let scratch = tempfile::tempdir().unwrap();
    let (area, templates) = (scratch.path().join("area"), scratch.path().join("templates"));
    std::fs::create_dir_all(area.join("root")).unwrap();
    std::fs::create_dir_all(area.join("usr")).unwrap();
    let quota = Quota::new(layer_bounds(None));
    std::fs::write(area.join("root/maker"), "first").unwrap();
    let first = commit_area(&area, &templates, "t-1", None, Existing::Take, &quota).unwrap();
    std::fs::write(area.join("root/maker"), "second").unwrap();

    commit_area(&area, &templates, "t-1", None, Existing::Replace, &quota).expect_err("a locked layer was replaced");
    let second = commit_area(&area, &templates, "t-1", None, Existing::Take, &quota).unwrap();
    assert_eq!(std::fs::read(second.root().join("maker")).unwrap(), b"first");

    drop((first, second));
    let third = commit_area(&area, &templates, "t-1", None, Existing::Replace, &quota).unwrap();
    assert_eq!(std::fs::read(third.root().join("maker")).unwrap(), b"second");
}
