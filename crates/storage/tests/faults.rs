//! The file system on a full disk, with very many or very large items, and with many concurrent writers.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

#[path = "../examples/storaged.rs"]
#[expect(dead_code, reason = "its `main` is for manual use")]
mod storaged;
mod support;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use isopod_storage::{DirectoryStore, Sync, Vfs};
use rustix::io::Errno;
use support::process::{ARGUMENTS, Process, can_mount};
use support::{Flaky, Random, crash, is_full_run, make_directory, quick, read_file, write_file};

/// Not a test: the daemon that `Process` starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is the daemon of the other tests"]
async fn daemon_of_the_other_tests() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    storaged::run(&arguments).await.expect("the daemon failed");
}

/// A disk with little space.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let options = format!("size={size},mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(disk.0.path()).status();
        assert!(mounted.unwrap().success(), "needs root");
        disk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = isopod_storage::unmount(self.0.path());
    }
}

/// The journal and the copies fill the disk while nothing can be uploaded. Programs get ENOSPC, acknowledged data
/// stays, and there is space again after the bucket has taken it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_takes_nothing_that_was_acknowledged() {
    let disk = SmallDisk::new("3m");
    let directory = tempfile::tempdir().unwrap();
    let bucket = Flaky::new(DirectoryStore::open(&directory.path().join("bucket")).unwrap(), 3);
    let vfs = Vfs::open(bucket.clone(), quick(&disk.path().join("state"))).unwrap();
    let mut random = Random(21);
    let (mut kept, mut refused) = (BTreeMap::new(), 0);
    // Continue long after the first refusal: small files may still fit, and the journal itself must reach the limit
    // too.
    for index in 0..600_usize {
        let bytes = random.bytes([60_000, 3000, 10][index % 3]);
        let name = format!("f{index}");
        match write_file(&vfs, &name, &bytes).await {
            Ok(()) => drop(kept.insert(name, bytes)),
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 50 && kept.len() > 20, "{refused} refused, {} kept", kept.len());
    check_all(&vfs, &kept).await;
    crash(vfs, &disk.path().join("state")).await;

    // Restart on the full disk. Fill it to the last byte, so that not even a number could be written.
    while OpenOptions::new().create(true).append(true).open(disk.path().join("ballast")).is_ok_and(|mut file| {
        use std::io::Write as _;
        file.write_all(&[0; 4096]).is_ok()
    }) {}
    let vfs = Vfs::open(bucket.clone(), quick(&disk.path().join("state"))).unwrap();
    check_all(&vfs, &kept).await;
    let sync = Sync::start(vfs.clone());
    sync.settle().await;
    assert!(vfs.drop_clean_copies() > 1_000_000);
    write_file(&vfs, "afterwards", &[7; 100_000]).await.unwrap();
    kept.insert("afterwards".to_owned(), vec![7; 100_000]);
    sync.settle().await;
    let fresh = Vfs::open(bucket, quick(&directory.path().join("fresh"))).unwrap();
    check_all(&fresh, &kept).await;
}

async fn check_all(vfs: &Arc<Vfs>, kept: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in kept {
        assert!(read_file(vfs, name).await.unwrap() == *bytes, "{name} is another");
    }
}

struct World {
    process: Option<Process>,
    directory: tempfile::TempDir,
}

impl World {
    /// Two mounts of the execution `run`.
    fn new() -> Self {
        let mut world = Self { process: None, directory: tempfile::tempdir().unwrap() };
        let mounts = ["a", "b"].map(|name| format!("{}=run", world.path(name).display()));
        let bucket = world.path("bucket").display().to_string();
        world.process = Some(Process::start(&world.path("state"), &bucket, &mounts, &[]));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn settle(&mut self) {
        self.process.as_mut().unwrap().settle();
    }
}

/// 100,000 files in a full run.
#[test]
fn a_directory_of_very_many_files_is_made_listed_looked_at_and_removed() {
    if !can_mount() {
        return;
    }
    let count: u32 = if is_full_run() { 100_000 } else { 5000 };
    let mut world = World::new();
    let (one, other) = (world.path("a/many"), world.path("b/many"));
    fs::create_dir(&one).unwrap();
    for index in 0..count {
        fs::write(one.join(format!("f{index:06}")), index.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(&other).unwrap().count(), count as usize);
    for index in (0..count).step_by(997) {
        let path = other.join(format!("f{index:06}"));
        assert_eq!(fs::metadata(&path).unwrap().len(), index.to_string().len() as u64);
        assert_eq!(fs::read_to_string(path).unwrap(), index.to_string());
    }
    world.settle();
    assert_eq!(fs::read_dir(world.path("bucket/executions/run/many")).unwrap().count(), count as usize);
    fs::remove_dir_all(&other).unwrap();
    assert!(!one.exists());
    world.settle();
    assert!(!world.path("bucket/executions/run/many").exists());
}

/// Holes read as zeros, take no space in the copy, and are in the object.
#[test]
fn sparse_files_read_as_zeros_and_take_no_room() {
    if !can_mount() {
        return;
    }
    const LENGTH: u64 = 64 << 20;
    let mut world = World::new();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(world.path("a/sparse")).unwrap();
    file.set_len(LENGTH).unwrap();
    file.write_all_at(b"middle", LENGTH / 2).unwrap();
    file.write_all_at(b"beyond", LENGTH + 10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), LENGTH + 16);
    let other = fs::File::open(world.path("b/sparse")).unwrap();
    let mut piece = vec![1; 1 << 20];
    other.read_exact_at(&mut piece, LENGTH / 2 - 10).unwrap();
    assert_eq!((&piece[..10], &piece[10..16], piece[16]), (&[0; 10][..], &b"middle"[..], 0));
    let copies = fs::read_dir(world.path("state/copies")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    let longest = copies.max_by_key(fs::Metadata::len).unwrap();
    assert!(longest.len() == LENGTH + 16 && longest.blocks() * 512 < LENGTH / 8, "{longest:?}");
    file.set_len(LENGTH / 2 + 3).unwrap();
    world.settle();
    let object = fs::read(world.path("bucket/executions/run/sparse")).unwrap();
    assert_eq!(object.len() as u64, LENGTH / 2 + 3);
    assert!(object.ends_with(b"\0\0mid") && object[..LENGTH as usize / 2].iter().all(|byte| *byte == 0));
}

/// Every block contains its position and version. Many threads write through two mounts at once.
#[test]
fn blocks_written_by_many_at_once_are_all_there_and_whole() {
    if !can_mount() {
        return;
    }
    const BLOCK: usize = 8192;
    const BLOCKS: u64 = 64;
    let writers: u64 = 4;
    let mut world = World::new();
    fs::write(world.path("a/blocks"), b"").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let path = world.path(if writer % 2 == 0 { "a/blocks" } else { "b/blocks" });
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                let mut random = Random(writer + 1);
                for round in 0..200_u64 {
                    // Each writer has its own blocks, interleaved with those of the others.
                    let index = random.below(BLOCKS) * writers + writer;
                    file.write_all_at(&block::<BLOCK>(index, round), index * BLOCK as u64).unwrap();
                }
            });
        }
    });
    let mut expected = BTreeMap::new();
    for writer in 0..writers {
        let mut random = Random(writer + 1);
        for round in 0..200_u64 {
            expected.insert(random.below(BLOCKS) * writers + writer, round);
        }
    }
    let check = |bytes: Vec<u8>, where_: &str| {
        for (index, round) in &expected {
            let start = *index as usize * BLOCK;
            assert!(bytes[start..start + BLOCK] == block::<BLOCK>(*index, *round), "block {index} {where_}");
        }
    };
    check(fs::read(world.path("a/blocks")).unwrap(), "through one mount");
    check(fs::read(world.path("b/blocks")).unwrap(), "through the other");
    world.settle();
    check(fs::read(world.path("bucket/executions/run/blocks")).unwrap(), "in the bucket");
}

fn block<const SIZE: usize>(index: u64, round: u64) -> Vec<u8> {
    [index.to_le_bytes(), round.to_le_bytes()].concat().repeat(SIZE / 16)
}

/// Errors have the numbers that POSIX requires.
#[test]
fn refusals_are_those_of_posix() {
    use rustix::fs::{Mode, OFlags, RenameFlags};
    if !can_mount() {
        return;
    }
    let world = World::new();
    let at = |name: &str| world.path("a").join(name);
    fs::write(at("file"), b"x").unwrap();
    fs::create_dir_all(at("full/below")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
    let open = |name: &str, flags: OFlags| rustix::fs::open(at(name), flags, Mode::from_raw_mode(0o644)).map(drop);
    let rename = |from: &str, to: &str| rustix::fs::rename(at(from), at(to));
    let long = "n".repeat(256);
    let exchange =
        rustix::fs::renameat_with(rustix::fs::CWD, at("file"), rustix::fs::CWD, at("empty"), RenameFlags::EXCHANGE);
    let cases: Vec<(&str, rustix::io::Result<()>, Errno)> = vec![
        ("open what is not there", open("none", OFlags::RDONLY), Errno::NOENT),
        ("create with O_EXCL what is there", open("file", OFlags::CREATE | OFlags::EXCL | OFlags::RDWR), Errno::EXIST),
        (
            "create with O_EXCL over a link",
            open("dangling", OFlags::CREATE | OFlags::EXCL | OFlags::RDWR),
            Errno::EXIST,
        ),
        ("write to a directory", open("empty", OFlags::WRONLY), Errno::ISDIR),
        ("a file as a directory", open("file", OFlags::DIRECTORY), Errno::NOTDIR),
        ("below a file", open("file/x", OFlags::RDONLY), Errno::NOTDIR),
        ("a link to itself", open("loop", OFlags::RDONLY), Errno::LOOP),
        ("a link that is not to be followed", open("dangling", OFlags::NOFOLLOW), Errno::LOOP),
        ("a name of 256 bytes", open(&long, OFlags::CREATE | OFlags::RDWR), Errno::NAMETOOLONG),
        ("mkdir over a file", rustix::fs::mkdir(at("file"), Mode::RWXU), Errno::EXIST),
        ("mkdir in nothing", rustix::fs::mkdir(at("none/x"), Mode::RWXU), Errno::NOENT),
        ("rmdir of a full one", rustix::fs::rmdir(at("full")), Errno::NOTEMPTY),
        ("rmdir of a file", rustix::fs::rmdir(at("file")), Errno::NOTDIR),
        ("unlink of a directory", rustix::fs::unlink(at("empty")), Errno::ISDIR),
        ("unlink of nothing", rustix::fs::unlink(at("none")), Errno::NOENT),
        ("rename of nothing", rename("none", "x"), Errno::NOENT),
        ("rename of a file onto a directory", rename("file", "empty"), Errno::ISDIR),
        ("rename of a directory onto a file", rename("empty", "file"), Errno::NOTDIR),
        ("rename onto a full directory", rename("empty", "full"), Errno::NOTEMPTY),
        ("rename into itself", rename("full", "full/below/x"), Errno::INVAL),
        ("exchange", exchange, Errno::INVAL),
        ("a hard link", rustix::fs::link(at("file"), at("hard")), Errno::PERM),
        ("a link with no target", rustix::fs::symlink("", at("s")), Errno::NOENT),
    ];
    for (what, done, expected) in cases {
        assert_eq!(done, Err(expected), "{what}");
    }
    assert_eq!(fs::read(at("file")).unwrap(), b"x", "nothing of it did anything");
}

/// A limit on a directory counts what is already in the bucket, and what others write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_counts_what_the_bucket_has_already() {
    let directory = tempfile::tempdir().unwrap();
    let bucket = Arc::new(DirectoryStore::open(&directory.path().join("bucket")).unwrap());
    let first = Vfs::open(bucket.clone(), quick(&directory.path().join("first"))).unwrap();
    let sync = Sync::start(first.clone());
    make_directory(&first, "executions").await.unwrap();
    make_directory(&first, "executions/deep").await.unwrap();
    write_file(&first, "executions/deep/old", &[1; 70_000]).await.unwrap();
    sync.settle().await;
    let vfs = Vfs::open(bucket, quick(&directory.path().join("second"))).unwrap();
    let top = support::resolve(&vfs, "executions").await.unwrap().ino;
    vfs.limit(top, isopod_storage::Quota { bytes: Some(100_000), files: None }).await.unwrap();
    assert_eq!(vfs.usage(top).unwrap().0.bytes, 70_000);
    let error = write_file(&vfs, "executions/new", &[2; 40_000]).await.unwrap_err();
    assert_eq!(error.errno(), Errno::DQUOT);
    write_file(&vfs, "elsewhere", &[2; 400_000]).await.unwrap();
    write_file(&vfs, "executions/new", &[2; 20_000]).await.unwrap();
}
