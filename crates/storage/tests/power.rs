//! Power failures, on a disk that really loses what was not made durable: ext4 in an image that is shut down in the
//! middle.
//!
//! The shutdown (`FS_IOC_SHUTDOWN` without a flush, which is how xfstests simulates a power cut) drops all bytes and
//! names that no fsync has written to the disk. The next mount finds what a machine would find after a power cut.
//! Nothing is uploaded here, so everything that is restored comes from the journal and the copies alone.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_storage::{DirectoryStore, ROOT, Sync, Vfs};
use support::model::{Entry, Model, Step, perform, snapshot};
use support::{Random, is_full_run, quick, read_file, resolve, write_file};

/// A small, separate disk.
struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let disk = Self { directory: tempfile::tempdir().unwrap() };
        File::create(disk.path("image")).unwrap().set_len(96 << 20).unwrap();
        fs::create_dir(disk.path("disk")).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk.path("image")), "package e2fsprogs");
        disk.mount();
        disk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path("disk/state")
    }

    fn mount(&self) {
        run(
            Command::new("mount").args(["-o", "loop"]).arg(self.path("image")).arg(self.path("disk")),
            "needs root and loop devices",
        );
    }

    /// Cuts the power: what was not made durable is lost from now on. Open files on it can only be closed.
    fn cut(&self) {
        const SHUTDOWN: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";
        run(Command::new("python3").args(["-c", SHUTDOWN]).arg(self.path("disk")), "ext4 must know FS_IOC_SHUTDOWN");
    }

    fn switch_on(&self) {
        // Whoever drops the last reference to a file system closes its files a moment later.
        let deadline = Instant::now() + Duration::from_secs(30);
        while !Command::new("umount").arg(self.path("disk")).output().unwrap().status.success() {
            assert!(Instant::now() < deadline, "somebody holds the disk");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.wait_until_released();
        self.mount();
    }

    /// Waits until the kernel has let go of the file system. A program that starts in a mount namespace of its own, as
    /// every sandbox does, holds a copy of this mount for a moment, and a mount in that moment would get the file system
    /// that was shut down.
    fn wait_until_released(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.loop_devices().is_empty() {
            assert!(Instant::now() < deadline, "somebody still holds {}", self.loop_devices());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The loop devices of the image, a line each.
    fn loop_devices(&self) -> String {
        let listed = Command::new("losetup").arg("--associated").arg(self.path("image")).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path("disk")).status();
    }
}

fn run(command: &mut Command, hint: &str) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {} ({hint})", String::from_utf8_lossy(&done.stderr));
}

/// Ends a file system like a power failure, and waits until nothing of it is open.
async fn end(vfs: Arc<Vfs>) {
    let weak = Arc::downgrade(&vfs);
    drop(vfs);
    while weak.strong_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What must exist after a power failure.
#[derive(Default)]
struct Promised {
    /// The bytes of files that an fsync has made durable, under their current names.
    bytes: BTreeMap<String, Vec<u8>>,
    /// The entries that have not changed since the last fsync.
    entries: BTreeMap<String, Entry>,
    /// The names that existed at the last fsync or at any time since. No other name may come back.
    possible: BTreeSet<String>,
}

impl Promised {
    /// Called after a step of any kind.
    fn stepped(&mut self, step: &Step, model: &Model) {
        if let Step::Rename { from, to, .. } = step {
            let moved = self.bytes.clone();
            for (path, bytes) in moved.into_iter().filter(|(path, _)| is_at_or_below(path, from)) {
                self.bytes.remove(&path);
                self.bytes.insert(format!("{to}{}", &path[from.len()..]), bytes);
            }
        }
        let is_same = |path: &String, bytes: &Vec<u8>| matches!(model.entries.get(path), Some(Entry::File { content, .. }) if content == bytes);
        self.bytes.retain(|path, bytes| is_same(path, bytes));
        self.entries.retain(|path, entry| model.entries.get(path) == Some(entry));
        self.possible.extend(model.entries.keys().cloned());
    }

    /// Called after an fsync of a file, or of the root directory.
    fn synced(&mut self, path: Option<&str>, model: &Model) {
        if let Some((path, Entry::File { content, .. })) = path.and_then(|path| model.entries.get_key_value(path)) {
            self.bytes.insert(path.clone(), content.clone());
        }
        let is_durable = |path: &String, entry: &Entry| match entry {
            Entry::File { .. } => self.bytes.contains_key(path),
            Entry::Directory { .. } | Entry::Link { .. } => true,
        };
        let durable = model.entries.iter().filter(|(path, entry)| is_durable(path, entry));
        self.entries = durable.map(|(path, entry)| (path.clone(), entry.clone())).collect();
        self.possible = model.entries.keys().cloned().collect();
    }

    fn check(&self, found: &BTreeMap<String, Entry>, when: &str) {
        for (path, entry) in &self.entries {
            assert!(found.get(path) == Some(entry), "{path:?} was made durable and is not as it was, {when}");
        }
        for path in found.keys() {
            assert!(self.possible.contains(path), "{path:?} was gone before the last fsync and is back, {when}");
        }
    }
}

fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Runs steps with fsyncs between them and a power failure at the end, for several lives of one disk.
async fn lives(seed: u64, lives: u64) -> usize {
    let disk = Disk::new();
    let bucket = Arc::new(DirectoryStore::open(&disk.path("bucket")).unwrap());
    let (mut random, mut model, mut proven) = (Random(seed), Model::default(), 0);
    let mut promised = Promised::default();
    for life in 0..lives {
        let vfs = Vfs::open(bucket.clone(), quick(&disk.state())).unwrap();
        let found = snapshot(&vfs).await;
        promised.check(&found, &format!("seed {seed} life {life}"));
        proven += promised.entries.len();
        model.entries = found;
        for _ in 0..20 + random.below(40) {
            let step = Step::random(&mut random);
            let expected = model.apply(&step).is_ok();
            assert_eq!(perform(&vfs, &step).await.is_ok(), expected, "{step:?}");
            if expected {
                promised.stepped(&step, &model);
            }
            if random.below(4) == 0 {
                fsync(&vfs, &model, &mut promised, &mut random).await;
            }
        }
        if random.below(3) == 0 {
            // The kernel may have written the journal by itself, but not the data that it refers to.
            File::open(disk.state().join("journal")).unwrap().sync_data().unwrap();
        }
        disk.cut();
        end(vfs).await;
        disk.switch_on();
    }
    proven
}

async fn fsync(vfs: &Vfs, model: &Model, promised: &mut Promised, random: &mut Random) {
    let files: Vec<&String> =
        model.entries.iter().filter(|(_, entry)| matches!(entry, Entry::File { .. })).map(|(path, _)| path).collect();
    if files.is_empty() || random.below(4) == 0 {
        vfs.sync_file(ROOT).await.unwrap();
        return promised.synced(None, model);
    }
    let path = files[random.below(files.len() as u64) as usize];
    vfs.sync_file(resolve(vfs, path).await.unwrap().ino).await.unwrap();
    promised.synced(Some(path), model);
}

/// fsync is durable. What was fsynced still exists after a power cut, with its names, and what was removed before stays
/// removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_fsynced_survives_a_power_failure() {
    let (seeds, many) = if is_full_run() { (1..=12, 8) } else { (1..=3, 4) };
    let mut proven = 0;
    for seed in seeds {
        proven += lives(seed, many).await;
    }
    assert!(proven > 20, "only {proven} entries were looked at: the test proves nothing");
}

/// The disk of this test loses what was not made durable. Otherwise the test above would prove nothing.
#[test]
fn the_disk_of_this_test_really_loses_what_was_not_made_durable() {
    let disk = Disk::new();
    fs::write(disk.path("disk/kept"), b"kept").unwrap();
    File::open(disk.path("disk/kept")).unwrap().sync_all().unwrap();
    fs::write(disk.path("disk/lost"), b"lost").unwrap();
    disk.cut();
    disk.switch_on();
    assert_eq!(fs::read(disk.path("disk/kept")).unwrap(), b"kept");
    assert!(!disk.path("disk/lost").exists());
}

/// A disk may keep a record of the journal and lose the copy that it refers to. Other files must not suffer from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_a_power_failure_took_does_not_keep_the_rest_from_coming_back() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let bucket = Arc::new(DirectoryStore::open(&directory.path().join("bucket")).unwrap());
    let vfs = Vfs::open(bucket.clone(), quick(&state)).unwrap();
    let sync = Sync::start(vfs.clone());
    write_file(&vfs, "in the bucket", b"old").await.unwrap();
    sync.settle().await;
    sync.stop().await;
    write_file(&vfs, "in the bucket", b"newer").await.unwrap();
    write_file(&vfs, "lost", b"never fsynced").await.unwrap();
    write_file(&vfs, "kept", b"here").await.unwrap();
    let lost = [resolve(&vfs, "lost").await.unwrap().ino, resolve(&vfs, "in the bucket").await.unwrap().ino];
    end(vfs).await;
    for ino in lost {
        remove_copy(&state, ino);
    }
    let vfs = Vfs::open(bucket, quick(&state)).unwrap();
    assert_eq!(read_file(&vfs, "kept").await.unwrap(), b"here");
    assert_eq!(read_file(&vfs, "in the bucket").await.unwrap(), b"old");
    assert!(read_file(&vfs, "lost").await.is_err());
}

fn remove_copy(state: &Path, ino: u64) {
    fs::remove_file(state.join("copies").join(format!("{ino:016x}"))).unwrap();
}
